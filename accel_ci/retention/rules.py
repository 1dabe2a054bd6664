"""The keep rules: which builds stay and how much of them. Pure; reading and removing is in `prune.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Literal

from accel_ci.config.settings import Retention
from accel_ci.model import Build, Trigger
from accel_ci.pipelines import BAZEL_TEST_RESULTS, DEVICE_TEST_RESULTS, LEDGER, TEST_SELECTION

Extent = Literal["whole", "results"]
"""`whole` with wheels, image, sources and rounds; `results` with what its ledger, and the ledgers after it, refer to."""

_COMPARED = (LEDGER, TEST_SELECTION, DEVICE_TEST_RESULTS, BAZEL_TEST_RESULTS)
"""The manifests that later builds are compared with."""


@dataclass(frozen=True)
class BuildFacts:
    """What the rules ask of a build: its manifests, whether it passed, and whether it was released."""

    build: Build
    stages: frozenset[str] = frozenset()
    green: bool = False
    released: bool = False


@dataclass(frozen=True)
class RevisionFacts:
    """What the rules ask of a revision. `trigger` is None where its manifest cannot be read."""

    key: str
    trigger: Trigger | None
    created_at: datetime
    builds: tuple[BuildFacts, ...] = ()
    released: bool = False
    in_use: bool = False


@dataclass(frozen=True)
class Kept:
    """How much of a build is kept, and why."""

    extent: Extent
    reason: str


def reason_to_keep(revision: RevisionFacts, rules: Retention, now: datetime) -> str | None:
    """Why all builds of a revision are kept; None when each is decided alone."""
    if revision.trigger is None:
        return "its revision.json is missing or unreadable"
    if revision.in_use:
        return "a run of it is not over"
    if revision.released:
        return "released"
    if any(fnmatchcase(revision.key, pattern) for pattern in rules.pinned):
        return "pinned"
    return f"of the last {rules.days} days" if revision.created_at >= now - timedelta(days=rules.days) else None


def kept_builds(revisions: Iterable[RevisionFacts], rules: Retention, window_days: int, now: datetime) -> dict[Build, Kept]:
    """The builds that are kept; the others go.

    The ledgers of the last `window_days` days are kept, and of each variant and trigger the newest manifests before them,
    since the first of them was compared with those.
    """
    window = now - timedelta(days=window_days)
    greens: Counter[tuple[str, str | None]] = Counter()
    compared: set[tuple[str, str | None, str]] = set()
    kept = {}
    for revision in sorted(revisions, key=lambda one: (one.created_at, one.key), reverse=True):
        for facts in revision.builds:
            variant = facts.build.variant
            reason = reason_to_keep(revision, rules, now) or ("released" if facts.released else None)
            if facts.green:
                greens[variant, revision.trigger] += 1
                if greens[variant, revision.trigger] <= rules.last_green:
                    reason = reason or f"one of the last {rules.last_green} green builds"
            needed = {(variant, revision.trigger, stage) for stage in _COMPARED if stage in facts.stages} - compared
            if revision.created_at < window:
                compared |= needed
            if reason is not None:
                kept[facts.build] = Kept("whole", reason)
            elif revision.created_at >= window:
                kept[facts.build] = Kept("results", f"of the last {window_days} days")
            elif needed:
                kept[facts.build] = Kept("results", "the last one before the window")
    return kept
