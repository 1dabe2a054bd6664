"""The stages of the ramp: those that a project has reached, and the needs of the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accel_ci.config.settings import RampStage
from accel_ci.ramp.chances import RampTest
from accel_ci.ramp.proposal import Proposal, propose


@dataclass(frozen=True)
class StageNeeds:
    """The needs of a stage: tests to enable, and card-seconds of each build with all that is enabled by then.

    `hours` is the least time of such a build on the stage's cards.
    """

    stage: RampStage
    proposal: Proposal
    card_s: float

    @property
    def hours(self) -> float:
        """The card-seconds, evenly on the stage's cards."""
        return self.card_s / 3600 / self.stage.cards


@dataclass(frozen=True)
class StageStanding:
    """A stage, and whether a project has its share of enabled tests, and as many cards."""

    stage: RampStage
    has_share: bool
    has_cards: bool

    @property
    def reached(self) -> bool:
        """True if nothing of the stage is missing that can be counted."""
        return self.has_share and self.has_cards


def standings(stages: Sequence[RampStage], share: float, cards: int) -> list[StageStanding]:
    """Compare each stage with a project's share and the cards of its pool."""
    return [StageStanding(stage, share >= stage.share, cards >= stage.cards) for stage in stages]


def reached(stages: Sequence[RampStage], share: float) -> RampStage | None:
    """Return the last stage whose share is reached; None before the first."""
    return next((stage for stage in reversed(stages) if share >= stage.share), None)


def next_stage_needs(stages: Sequence[RampStage], tests: Sequence[RampTest]) -> StageNeeds | None:
    """Return what the next stage needs of the tests in scope; None where the last one is reached."""
    share = sum(test.enabled for test in tests) / len(tests) if tests else 0.0
    stage = next((stage for stage in stages if stage.share > share), None)
    return stage_needs(stage, tests) if stage is not None else None


def stage_needs(stage: RampStage, tests: Sequence[RampTest]) -> StageNeeds:
    """Return what a stage needs of the tests in scope: no more tests where its share is reached."""
    proposal = propose(tests, stage.share)
    card_s = sum(test.cost_s for test in tests if test.enabled) + proposal.card_s
    return StageNeeds(stage, proposal, card_s)
