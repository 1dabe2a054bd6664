"""The keep rules, on builds that exist as facts alone."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from accel_ci.config.settings import Retention
from accel_ci.model import Build, Trigger
from accel_ci.retention.rules import BuildFacts, Extent, RevisionFacts, keeps_all, kept_builds

NOW = datetime(2026, 11, 27, 8, 30, tzinfo=timezone.utc)
ALL = frozenset({"ledger", "test_selection", "device_test_results"})


def revision(
    days: float,
    *,
    green: bool = False,
    trigger: Trigger | None = "nightly",
    stages: frozenset[str] = ALL,
    released: bool = False,
    build_released: bool = False,
    in_use: bool = False,
    key: str | None = None,
) -> RevisionFacts:
    key = key or f"{trigger}-{days}"
    facts = BuildFacts(Build(key, "py3"), stages, green, build_released)
    return RevisionFacts(key, trigger, NOW - timedelta(days=days), (facts,), released, in_use)


def kept(*revisions: RevisionFacts, window: int = 30, **rules: object) -> dict[str, Extent]:
    found = kept_builds(revisions, Retention.model_validate(rules), window, NOW)
    return {build.revision: extent for build, extent in found.items()}


def test_the_last_days_are_kept_whole_and_the_window_with_its_results() -> None:
    days = (1, 6, 8, 29, 31, 32)
    assert kept(*map(revision, days), days=7, last_green=0) == {
        "nightly-1": "whole",
        "nightly-6": "whole",
        "nightly-8": "results",
        "nightly-29": "results",
        "nightly-31": "results",  # what nightly-29 was compared with
    }


def test_a_build_is_compared_with_the_last_one_that_has_the_manifest() -> None:
    found = kept(
        revision(1),
        revision(40, stages=frozenset({"ledger"})),
        revision(50, stages=frozenset({"ledger", "test_selection"})),
        revision(60, stages=frozenset({"wheel"})),
        revision(70, stages=ALL),
        revision(80, stages=ALL),
        last_green=0,
    )
    assert found == {"nightly-1": "whole", "nightly-40": "results", "nightly-50": "results", "nightly-70": "results"}


def test_the_last_green_builds_are_counted_by_variant_and_trigger() -> None:
    nightly = [revision(day, green=day != 100, stages=frozenset()) for day in (90, 100, 110, 120, 130)]
    manual = [revision(day, green=True, trigger="manual", stages=frozenset()) for day in (200, 210, 220)]
    assert kept(*nightly, *manual, last_green=2) == dict.fromkeys(
        ("nightly-90", "nightly-110", "manual-200", "manual-210"), "whole"
    )


@pytest.mark.parametrize(
    ("revision", "whole"),
    [
        (revision(99, released=True), True),
        (revision(99, in_use=True), True),
        (revision(99, trigger=None), True),
        (revision(99, key="manual-demo-2"), True),
        (revision(1), True),
        (revision(99), False),
    ],
)
def test_a_revision_can_be_kept_with_all_its_builds(revision: RevisionFacts, whole: bool) -> None:
    assert keeps_all(revision, Retention(pinned=("manual-demo*",)), NOW) == whole
    assert kept(revision, last_green=0, pinned=("manual-demo*",)) == {revision.key: "whole" if whole else "results"}


def test_one_build_of_a_revision_can_be_released() -> None:
    assert kept(revision(98), revision(99, build_released=True), revision(100), last_green=0) == {
        "nightly-98": "results",
        "nightly-99": "whole",
    }
