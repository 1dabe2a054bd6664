"""Find flaky tests: those that both passed and failed in the same build. Revisions are never mixed.

Mixing revisions would count a breakage and its fix as a flake. The rate is over the builds that ran the test (those that
skipped it say nothing of it) and comes with a 95 % Wilson interval (E. B. Wilson, JASA 22, 1927), since most flaky tests
fail in well under 1 % of their runs and a short history proves little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date

from accel_ci.results.columns import kernels
from accel_ci.results.history import window_sums
from accel_ci.results.store import ResultsStore


@dataclass(frozen=True)
class FlakyTest:
    """A test with its share of flaky builds, of the `builds` that ran it, and the 95 % interval of that share."""

    variant: str
    suite: str
    test: str
    builds: int
    flaky_builds: int
    rate: float
    rate_low: float
    rate_high: float
    last_failure: str | None


@dataclass(frozen=True)
class Flakiness:
    """The flaky tests of a window, worst first."""

    window_days: int
    tests: int
    flaky: tuple[FlakyTest, ...]


def measure(store: ResultsStore, today: date, window_days: int) -> Flakiness:
    """Find the tests with a flaky build in the window, by rate and then by name.

    The cost depends on what is new in the store, not on the window's length.
    """
    tests, flaky = 0, list[FlakyTest]()
    for (variant, suite), sums in window_sums(store, today, window_days).items():
        tests += len(sums)
        for row in sums.filter(kernels.greater(sums["flaky"], 0)).to_pylist():
            rate, interval = row["flaky"] / row["builds"], wilson_interval(row["flaky"], row["builds"])
            flaky.append(
                FlakyTest(variant, suite, row["test"], row["builds"], row["flaky"], rate, *interval, row["message"])
            )
    flaky.sort(key=lambda test: (-test.rate, test.variant, test.suite, test.test))
    return Flakiness(window_days, tests, tuple(flaky))


def wilson_interval(hits: int, tries: int, z: float = 1.959964) -> tuple[float, float]:
    """The Wilson score interval of a proportion; (0, 1) when nothing was tried."""
    if tries == 0:
        return 0.0, 1.0
    share, spread = hits / tries, z * z / tries
    centre = share + spread / 2
    margin = z * math.sqrt(share * (1 - share) / tries + spread / (4 * tries))
    return max(0.0, (centre - margin) / (1 + spread)), min(1.0, (centre + margin) / (1 + spread))
