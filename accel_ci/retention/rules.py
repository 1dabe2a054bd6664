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


def keeps_all(revision: RevisionFacts, rules: Retention, now: datetime) -> bool:
    """True if all builds of a revision are kept: released, pinned, in use, young, or of an unreadable `revision.json`."""
    return (
        revision.trigger is None
        or revision.in_use
        or revision.released
        or any(fnmatchcase(revision.key, pattern) for pattern in rules.pinned)
        or revision.created_at >= now - timedelta(days=rules.days)
    )


def kept_builds(
    revisions: Iterable[RevisionFacts], rules: Retention, window_days: int, now: datetime
) -> dict[Build, Extent]:
    """Choose the builds to keep; the others go.

    The results of the last `window_days` days are kept. So are the newest ones before them of each variant and trigger,
    because the next build is compared with those.
    """
    window = now - timedelta(days=window_days)
    greens: Counter[tuple[str, str | None]] = Counter()
    compared: set[tuple[str, str | None, str]] = set()
    kept: dict[Build, Extent] = {}
    for revision in sorted(revisions, key=lambda one: (one.created_at, one.key), reverse=True):
        for facts in revision.builds:
            variant = facts.build.variant
            whole = facts.released or keeps_all(revision, rules, now)
            if facts.green:
                greens[variant, revision.trigger] += 1
                whole = whole or greens[variant, revision.trigger] <= rules.last_green
            needed = {(variant, revision.trigger, stage) for stage in _COMPARED if stage in facts.stages} - compared
            if revision.created_at < window:
                compared |= needed
            if whole:
                kept[facts.build] = "whole"
            elif needed or revision.created_at >= window:
                kept[facts.build] = "results"
    return kept
