"""The keep rules, as pure functions: the builds that stay, and how much of each."""

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
"""`whole` includes wheels, image, sources and rounds; `results` is only what its ledger and later ledgers refer to."""

_COMPARED = (LEDGER, TEST_SELECTION, DEVICE_TEST_RESULTS, BAZEL_TEST_RESULTS)
"""The manifests that later builds are compared with."""


@dataclass(frozen=True)
class BuildFacts:
    """The properties of a build that the rules depend on. `stages` are its manifests."""

    build: Build
    stages: frozenset[str] = frozenset()
    green: bool = False
    released: bool = False


@dataclass(frozen=True)
class RevisionFacts:
    """The properties of a revision that the rules depend on. `trigger` is None if its manifest cannot be read."""

    key: str
    trigger: Trigger | None
    created_at: datetime
    builds: tuple[BuildFacts, ...] = ()
    released: bool = False
    in_use: bool = False


@dataclass(frozen=True)
class Kept:
    """The part of a build that is kept, and the reason."""

    extent: Extent
    reason: str


def reason_to_keep(revision: RevisionFacts, rules: Retention, now: datetime) -> str | None:
    """The reason to keep all builds of a revision; None if the rules look at each build."""
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
    """Choose the builds to keep; the others go.

    The results of the last `window_days` days are kept. So are the newest ones before them of each variant and trigger,
    because the next build is compared with those.
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
