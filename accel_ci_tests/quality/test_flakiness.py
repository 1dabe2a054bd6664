from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from accel_ci.model import Attempt, Build
from accel_ci.quality.flakiness import measure, wilson_interval
from accel_ci.results.store import ResultsStore
from accel_ci_tests.fixtures.stored_attempts import write_attempts


@pytest.mark.parametrize(
    ("hits", "tries", "low", "high"),
    [  # reference values: statsmodels.stats.proportion.proportion_confint(method="wilson")
        (0, 10, 0.0, 0.277533),
        (1, 10, 0.017876, 0.404150),
        (5, 10, 0.236593, 0.763407),
        (10, 10, 0.722467, 1.0),
        (1, 1000, 0.000177, 0.005643),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson_interval(hits: int, tries: int, low: float, high: float) -> None:
    assert wilson_interval(hits, tries) == pytest.approx((low, high), abs=1e-6)


def test_the_worst_come_first_and_stable_tests_are_left_out(tmp_path: Path, attempt: Callable[..., Attempt]) -> None:
    store, today = ResultsStore(tmp_path), date(2026, 11, 27)
    for night in range(4):
        rows = [attempt(test, "passed") for test in ("never", "often", "once")]
        rows += [attempt("often", "failed", round=2)] * (night > 0) + [attempt("once", "failed", round=2)] * (night == 3)
        write_attempts(store, Build(f"nightly-{night}", "py3"), today, rows)
    found = measure(store, today, 30)
    assert [(test.test, test.flaky_builds, test.builds) for test in found.flaky] == [("often", 3, 4), ("once", 1, 4)]
    assert found.tests == 3


@pytest.mark.parametrize(("other", "builds"), [("skipped", 1), ("not_run", 1), ("passed", 9), ("xfailed", 9), ("failed", 9)])
def test_a_build_that_skips_a_test_says_nothing_of_it(
    tmp_path: Path, attempt: Callable[..., Attempt], other: str, builds: int
) -> None:
    store, today = ResultsStore(tmp_path), date(2026, 11, 27)
    write_attempts(store, Build("r", "py3"), today, [attempt("t", "failed"), attempt("t", "passed", round=2)])
    for night in range(8):
        write_attempts(store, Build(f"r{night}", "py3"), today, [attempt("t", other)])
    for _ in ("anew", "from kept sums"):
        [test] = measure(store, today, 30).flaky
        assert (test.flaky_builds, test.builds, test.rate) == (1, builds, 1 / builds)


@pytest.mark.parametrize("second", ["skipped", "xfailed", "not_run"])
def test_a_failure_without_a_pass_is_no_flake(tmp_path: Path, attempt: Callable[..., Attempt], second: str) -> None:
    store, today = ResultsStore(tmp_path), date(2026, 11, 27)
    write_attempts(store, Build("r", "py3"), today, [attempt("t", "failed"), attempt("t", second, round=2)])
    assert measure(store, today, 30).flaky == ()
