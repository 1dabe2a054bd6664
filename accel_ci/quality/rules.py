"""The rules of the quality engine: a project's, and a file that changes some of them, to be replayed before they act.

    causes: {certain: 0.99}
    quarantine: {mute_above: 0.05, budget: 0.02}

What the rules mean is in `causes.py`, `places.py` and `quarantine.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from accel_ci.config.loading import read_section
from accel_ci.config.section import Section
from accel_ci.config.settings import Settings, Share
from accel_ci.quality.judgement import JudgementRules
from accel_ci.quality.quarantine import QuarantineRules

Chance = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0, le=1e6)]


@dataclass(frozen=True)
class RuleSet:
    """All rules that hold at a time. Unless the rule of the quarantine is `automatic`, people alone decide."""

    judgement: JudgementRules = field(default_factory=JudgementRules)
    quarantine: QuarantineRules = field(default_factory=QuarantineRules)
    automatic: bool = False

    @property
    def acting(self) -> QuarantineRules | None:
        """The thresholds of the quarantine where the rule acts."""
        return self.quarantine if self.automatic else None


class CauseWeights(Section):
    """Fields of `CauseRules`."""

    certain: Annotated[float, Field(gt=0.5, lt=1)] | None = None
    breakage: Chance | None = None
    new_flake: Chance | None = None
    flaky_share: Chance | None = None
    flake_rate: tuple[Positive, Positive] | None = None
    contrary: Chance | None = None
    same_signature: Chance | None = None


class PlaceThresholds(Section):
    """Fields of `PlaceRules`."""

    least_effect: Annotated[float, Field(ge=1, le=1e6)] | None = None
    false_alarms: Chance | None = None
    least_tests: Annotated[int, Field(ge=1)] | None = None
    shape: Positive | None = None
    least_expected: Positive | None = None


class QuarantineThresholds(Section):
    """Fields of `QuarantineRules`, and whether the rule acts: it does in a file that has this section."""

    automatic: bool = True
    least_flakes: Annotated[int, Field(ge=1)] | None = None
    mute_above: Share | None = None
    disable_above: Share | None = None
    release_below: Share | None = None
    budget: Share | None = None
    days: Annotated[int, Field(ge=1, le=365)] | None = None
    prior: tuple[Positive, Positive] | None = None


class RulesFile(Section):
    """The file. What it does not name stays as it is."""

    causes: CauseWeights = CauseWeights()
    places: PlaceThresholds = PlaceThresholds()
    quarantine: QuarantineThresholds | None = None


def rules_of(settings: Settings) -> RuleSet:
    """Return a project's rules."""
    chosen = settings.quality.quarantine
    thresholds = QuarantineRules(**chosen.model_dump(exclude={"file", "automatic"}))
    return RuleSet(quarantine=thresholds, automatic=chosen.automatic)


def read_rules(path: Path, today: RuleSet) -> RuleSet:
    """Return today's rules with the changes of a file. Raises `ConfigError` with a line for each mistake."""
    file = read_section(RulesFile, path, path.name)
    judgement = JudgementRules(
        replace(today.judgement.causes, **_given(file.causes)), replace(today.judgement.places, **_given(file.places))
    )
    if file.quarantine is None:
        return replace(today, judgement=judgement)
    given = _given(file.quarantine)
    automatic = given.pop("automatic")
    return RuleSet(judgement, replace(today.quarantine, **given), automatic)


def _given(section: Section) -> dict[str, Any]:
    return section.model_dump(exclude_none=True)
