from __future__ import annotations

import pytest

from accel_ci.quality.flakiness import find_flaky, wilson_interval
from accel_ci.results.store import TestHistory


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


def test_the_worst_come_first_and_stable_tests_are_left_out() -> None:
    def history(test: str, builds: int, flaky: int) -> TestHistory:
        return TestHistory("py3", "unit", test, builds, 0, flaky, 1.0, None)

    found = find_flaky([history("some", 100, 1), history("never", 100, 0), history("often", 10, 5)], 30)
    assert [test.test for test in found.flaky] == ["often", "some"]
    assert found.tests == 3
