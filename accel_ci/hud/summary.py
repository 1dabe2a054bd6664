"""A build in brief, as the pages over many builds show it. It is kept between writes of the HUD (`kept.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from accel_ci.hud.records import BuildRecord, BuildTests
from accel_ci.hud.speed import BuildSpeed, Times, speed_of
from accel_ci.hud.states import Bar, State, build_state, verdict_bar
from accel_ci.ledger.comparison import INSTEAD, is_of_branch
from accel_ci.model import Build, Revision, Trigger, Verdict, trigger_of_key


@dataclass(frozen=True)
class BuildSummary:
    """A build in brief. `counts`, `suites` and `muted` are its ledger's, `torch` the version and commit of its PyTorch."""

    build: Build
    state: State
    bar: Bar = field(default_factory=dict)
    finished: bool = False
    counts: dict[Verdict, int] = field(default_factory=dict)
    suites: dict[str, dict[Verdict, int]] = field(default_factory=dict)
    infra_attempts: int = 0
    muted: int = 0
    torch: tuple[str, str | None] | None = None
    speed: BuildSpeed | None = None

    @property
    def is_green(self) -> bool:
        """Return whether the build passed."""
        return self.state.kind in ("passed", "flaky")


@dataclass(frozen=True)
class RevisionBuilds:
    """A revision with its builds. `revision` is None when its manifest is missing or unreadable."""

    key: str
    seen_at: datetime
    revision: Revision | None
    builds: tuple[BuildSummary, ...]

    @property
    def trigger(self) -> Trigger | None:
        """The trigger, from the key where the manifest is unreadable."""
        return self.revision.trigger if self.revision else trigger_of_key(self.key)


def summarise(record: BuildRecord, tests: BuildTests | None, times: Times, now: datetime) -> BuildSummary:
    """Sum up a build; `tests` are those of its smoke stage, where it stopped there."""
    ledger, image = record.ledger, record.runtime_image
    torch = (image.torch_version, image.torch_sha) if image else None
    state = build_state(record, now, tests)
    if ledger is None:
        return BuildSummary(record.build, state, torch=torch)
    return BuildSummary(
        record.build, state, verdict_bar(ledger.counts), True, dict(ledger.counts), dict(ledger.suites),
        ledger.infra_attempts, len(ledger.muted), torch, speed_of(record, times),
    )  # fmt: skip


def earlier_builds(
    revisions: Sequence[RevisionBuilds], own: RevisionBuilds, summary: BuildSummary
) -> Iterator[BuildSummary]:
    """Yield the earlier finished builds of the same variant and trigger with all suites of a build, the newest first.

    The build of a pull request is compared with those of its branch. `revisions` come newest first.
    """
    trigger, target = own.trigger, own.revision.target if own.revision is not None else None
    triggers: Sequence[Trigger | None] = INSTEAD.get(trigger, (trigger,)) if trigger else (trigger,)
    triggers = triggers if target is None else (*triggers, "manual")
    for one in sorted(revisions, key=lambda each: each.seen_at, reverse=True):
        if one.trigger in triggers and one.seen_at < own.seen_at and is_of_branch(one.revision, target):
            for other in one.builds:
                has_all_suites = summary.suites.keys() <= other.suites.keys()
                if other.build.variant == summary.build.variant and other.finished and has_all_suites:
                    yield other
