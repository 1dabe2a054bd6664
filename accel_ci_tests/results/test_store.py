from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from accel_ci.model import Attempt, Build
from accel_ci.quality.flakiness import find_flaky
from accel_ci.results.store import ResultsStore

TODAY = date(2026, 11, 27)
BUILD = Build("nightly-20261127", "py3")


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    return ResultsStore(tmp_path / "results")


def test_nothing_stored_is_no_error(store: ResultsStore) -> None:
    assert store.durations("py3", TODAY) == {}
    assert store.histories(TODAY, 30) == []


def test_durations_are_medians_of_attempts_that_ended_by_themselves(
    store: ResultsStore, attempt: Callable[..., Attempt]
) -> None:
    for day, seconds in ((25, 1.0), (26, 2.0), (27, 30.0)):
        build = Build(f"nightly-202611{day}", "py3")
        rows = [
            attempt("a", "passed", seconds=seconds),
            attempt("b", "timeout", seconds=60.0),
            attempt("c", "failed", seconds=9.0, infra="bad card"),
            attempt("d", "skipped", seconds=None),
        ]
        store.write(build, date(2026, 11, day), rows)
    assert store.durations("py3", TODAY) == {("unit", "a"): 2.0}
    assert store.durations("other", TODAY) == {}
    assert store.durations("py3", TODAY, window_days=1) == {("unit", "a"): 16.0}


def test_a_build_that_is_stored_again_replaces_its_rows(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    assert store.write(BUILD, TODAY, [attempt("a", "failed"), attempt("a", "passed", suite="other")]) == 2
    store.write(BUILD, TODAY, [attempt("a", "passed")])
    histories = store.histories(TODAY, 30)
    assert [(h.suite, h.builds, h.failed_builds) for h in histories] == [("other", 1, 0), ("unit", 1, 0)]
    assert not [path for path in store.root.rglob("*") if path.name.startswith(".")]


def test_flaky_is_decided_within_a_build_never_across_builds(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    nights = {
        25: [attempt("mended", "failed"), attempt("flaky", "passed"), attempt("card", "passed")],
        26: [attempt("mended", "passed"), attempt("flaky", "failed", message="1e-3 off"),
             attempt("flaky", "passed", round=2, card="1"), attempt("card", "failed", infra="bad card"),
             attempt("card", "passed", round=2)],
    }  # fmt: skip
    for day, rows in nights.items():
        store.write(Build(f"nightly-202611{day}", "py3"), date(2026, 11, day), rows)
    flakiness = find_flaky(store.histories(TODAY, 30), 30)
    assert flakiness.tests == 3
    [test] = flakiness.flaky
    assert (test.test, test.builds, test.flaky_builds, test.rate, test.last_failure) == ("flaky", 2, 1, 0.5, "1e-3 off")


def test_hostile_names_are_stored_as_they_are(store: ResultsStore, attempt: Callable[..., Attempt]) -> None:
    names = ["'; DROP VIEW attempts; --", "<script>", "a\x00b", "naïve [ü]", "\u202egnp"]
    store.write(BUILD, TODAY, [attempt(name, "passed") for name in names])
    assert sorted(test for _, test in store.durations("py3", TODAY)) == sorted(names)
