"""Find tests that slowly became worse than a baseline: those that fail more often, and those that take longer.

A rate that climbs a little each week has no changepoint. So the newer builds are compared with a baseline, the last
release's or the older part of the window, as Sippy does for OpenShift's releases (github.com/openshift/sippy).

Many tests are compared at once. The p-values are adjusted for that by the method of Benjamini and Hochberg (JRSS B 57,
1995), over the tests that could be found at all: a test that fails once in both parts together proves nothing however the
failure falls, so it need not count (R. E. Tarone, Biometrics 46, 1990).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import false_discovery_control, hypergeom, mannwhitneyu, rankdata

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

_EXACT = 24
"""The most builds for which the rank test is exact."""

_CELLS = 1 << 21
"""So many durations are ranked at once, so that memory does not grow with the number of tests."""


@dataclass(frozen=True)
class RateDrift:
    """For each test: its failure rates, the p-value of a rise, that adjusted for all tests, and whether it is a finding.

    Where there is no data a rate is NaN and a p-value 1.
    """

    before: Floats
    after: Floats
    p_value: Floats
    adjusted: Floats
    found: Booleans


@dataclass(frozen=True)
class DurationDrift:
    """For each test: the median seconds before, and after; their ratio, the p-values, and whether it is a finding.

    All three are free of the pace of whole builds: `pace` has, of each build, how much longer its tests took than usual (1
    is as usual, and 1 where too few tests were measured to say so). A slow machine is no finding in every test.
    """

    before: Floats
    after: Floats
    ratio: Floats
    p_value: Floats
    adjusted: Floats
    found: Booleans
    pace: Floats


def find_rate_drift(
    baseline_runs: NDArray[np.integer],
    baseline_failures: NDArray[np.integer],
    runs: NDArray[np.integer],
    failures: NDArray[np.integer],
    share_of_false_findings: float = 0.01,
) -> RateDrift:
    """Find the tests that fail more often than in the baseline: R. A. Fisher's exact test, one-sided, of each test.

    Of the findings at most the given share is false on average.
    """
    counts = np.stack([baseline_runs, baseline_failures, runs, failures], axis=1).astype(np.int64)
    some = np.flatnonzero((counts[:, 0] > 0) & (counts[:, 2] > 0) & (counts[:, 1] + counts[:, 3] > 0))
    distinct, place = np.unique(counts[some], axis=0, return_inverse=True)
    old_runs, old_failures, new_runs, new_failures = distinct.T
    margins = old_runs + new_runs, old_failures + new_failures, new_runs
    p_value, least = np.ones(len(runs)), np.ones(len(runs))
    p_value[some] = np.clip(hypergeom.sf(new_failures - 1, *margins), 0, 1)[place.ravel()]
    least[some] = hypergeom.sf(np.minimum(margins[1], new_runs) - 1, *margins)[place.ravel()]
    adjusted = _adjust(p_value, least <= share_of_false_findings)
    with np.errstate(invalid="ignore"):
        before, after = baseline_failures / np.asarray(baseline_runs), failures / np.asarray(runs)
    return RateDrift(before, after, p_value, adjusted, adjusted <= share_of_false_findings)


def find_duration_drift(
    seconds: Floats,
    baseline: Booleans,
    ratio: float = 1.5,
    least_runs: int = 4,
    least_seconds: float = 1.0,
    share_of_false_findings: float = 0.01,
    tests_for_pace: int = 30,
) -> DurationDrift:
    """Find the tests that take longer than in the baseline, from `seconds[tests, builds]` with NaN where there is none.

    A finding has a median that is `ratio` times that of the baseline or more, at least `least_runs` durations on each side,
    at least `least_seconds` in its longest, and a rank test that confirms it: H. B. Mann and D. R. Whitney's (1947),
    one-sided. It is exact for a test with a duration in each of a few builds; for others it has the normal approximation,
    which for few durations is on the safe side. The pace of a build is the median over the tests that are long enough, of
    which `tests_for_pace` are needed.
    """
    seconds = np.asarray(seconds, dtype=np.float64)
    tests, builds = seconds.shape
    baseline = np.asarray(baseline, dtype=np.bool_)
    known = np.isfinite(seconds)
    enough = (known[:, baseline].sum(axis=1) >= least_runs) & (known[:, ~baseline].sum(axis=1) >= least_runs)
    long = np.flatnonzero(enough & (np.fmax.reduce(seconds, axis=1, initial=0) >= least_seconds))
    # Durations below a millisecond are noise of the clock, and a logarithm needs more than 0.
    logs = np.log(np.maximum(seconds[long], 1e-3))
    pace = _pace(logs, tests_for_pace)
    logs -= pace
    before, after, change = (np.full(tests, np.nan) for _ in range(3))
    p_value, could_be = np.ones(tests), np.zeros(tests, np.bool_)
    for rows in _chunks(len(long), builds):
        chosen, values = long[rows], logs[rows]
        old, new = _median(values[:, baseline]), _median(values[:, ~baseline])
        before[chosen], after[chosen], change[chosen] = np.exp(old), np.exp(new), np.exp(new - old)
        p_value[chosen] = _rank_test(values, baseline)
        could_be[chosen] = _largest_change(values, baseline) >= np.log(ratio)
    adjusted = _adjust(p_value, could_be)
    with np.errstate(invalid="ignore"):
        found = (adjusted <= share_of_false_findings) & (change >= ratio)
    return DurationDrift(before, after, change, p_value, adjusted, found, np.exp(pace))


def _adjust(p_value: Floats, counted: Booleans) -> Floats:
    """Benjamini and Hochberg's adjustment over the tests that count; for the others it is 1."""
    adjusted = np.ones(len(p_value))
    if counted.any():
        adjusted[counted] = false_discovery_control(p_value[counted])
    return adjusted


def _chunks(tests: int, builds: int) -> Iterator[slice]:
    step = max(1, _CELLS // max(1, builds))
    return (slice(first, first + step) for first in range(0, tests, step))


def _median(values: Floats) -> Floats:
    """The median of each row without its NaNs, of which `nanmedian` makes a slow loop."""
    values = np.sort(values, axis=1)  # NaNs go last
    return _middle(values, np.zeros(len(values), np.int64), np.isfinite(values).sum(axis=1))


def _middle(ordered: Floats, first: Integers, count: Integers) -> Floats:
    """The median of `count` values of each row, from `first` on; NaN where there is none."""
    row, some = np.arange(len(ordered)), count > 0
    low, high = np.where(some, first + (count - 1) // 2, 0), np.where(some, first + count // 2, 0)
    return np.where(some, (ordered[row, low] + ordered[row, high]) / 2, np.nan)


def _pace(logs: Floats, least_tests: int) -> Floats:
    """The logarithm of how much longer the tests of each build took than they usually do."""
    if not len(logs):
        return np.zeros(logs.shape[1])
    beside_usual = (logs - _median(logs)[:, None]).T
    measured = np.isfinite(beside_usual).sum(axis=1) >= least_tests
    return np.where(measured, np.nan_to_num(_median(beside_usual)), 0.0)


def _rank_test(values: Floats, baseline: Booleans) -> Floats:
    """The p-value that the newer values of each row are larger, by their ranks; NaNs are left out."""
    known = np.isfinite(values)
    ranks = np.where(known, rankdata(np.where(known, values, np.inf), axis=1), 0.0)
    older, newer = known[:, baseline].sum(axis=1), known[:, ~baseline].sum(axis=1)
    count = older + newer
    larger = ranks[:, ~baseline].sum(axis=1) - newer * (newer + 1) / 2
    # The variance over all ways to call values new; it holds with ties too.
    variance = older * newer / (count * (count - 1)) * ((ranks**2).sum(axis=1) - count * (count + 1) ** 2 / 4)
    with np.errstate(divide="ignore", invalid="ignore"):
        score = (larger - older * newer / 2 - 0.5) / np.sqrt(variance)
    p_value = np.where(variance > 1e-9, ndtr(-score), 1.0)
    exact = known.all(axis=1) & (count <= _EXACT) & (np.diff(np.sort(values, axis=1), axis=1) > 0).all(axis=1)
    if exact.any():
        sides = values[exact][:, baseline], values[exact][:, ~baseline]
        p_value[exact] = mannwhitneyu(*sides, alternative="less", axis=1, method="exact").pvalue
    return p_value


def _largest_change(values: Floats, baseline: Booleans) -> Floats:
    """The largest change of medians that any choice of newer values of each row would have.

    Like the least p-value of a table it depends on no labels, so that leaving tests out by it keeps the others' p-values
    true.
    """
    ordered = np.sort(values, axis=1)
    older = np.isfinite(values[:, baseline]).sum(axis=1)
    newer = np.isfinite(values[:, ~baseline]).sum(axis=1)
    return _middle(ordered, older, newer) - _middle(ordered, np.zeros_like(older), older)
