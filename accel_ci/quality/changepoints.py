"""Find the builds at which tests began to fail more often, or less often: Bayesian changepoints, all tests at once.

The method is that of LUCI Analysis (go.chromium.org/luci, analysis/internal/changepoints/bayesian). Each run of a segment
fails with the same unknown probability, which has a Beta prior. A series is split where two segments explain it better than
one, if the log-likelihood grows by more than the threshold, and its parts are split again until no split is worth it.

`RISE_OR_FALL` differs from `LUCI` in the priors: of the two segments the one that fails less is a healthy test's, and the
other fails in some share of its runs. At the same false alarms that sees small rises in fewer runs
(`python -m benchmarks.quality_detection`).

Two things are not seen. Slow drift has no changepoint: see `drift.py`. And a short breakage that was mended long ago may be
part of one segment again, because a single split at either end of it explains too little: look at the series as it was then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from accel_ci.quality.posterior import Beta

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_CELLS = 1 << 20
"""So many positions are compared at once: some 100 MB, whatever the number of tests."""


@dataclass(frozen=True)
class ChangeModel:
    """Priors of the failure rate in a segment that fails less, and in one that fails more, and the least gain of a split.

    A series without a change is weighed under the better of the two priors. `threshold` is in nats.
    """

    lower: Beta
    higher: Beta
    threshold: float


LUCI = ChangeModel(Beta(0.3, 0.5), Beta(0.3, 0.5), -float(np.log(1e-4)))
"""The model of LUCI Analysis: both segments have the same prior, and a split must be 10,000 times as likely."""

RISE_OR_FALL = ChangeModel(Beta(0.05, 1.0), Beta(0.5, 0.5), 10.2)
"""The model that is used: its threshold gives as many false alarms as LUCI's, some 1 in 10,000 series of 500 runs."""


@dataclass(frozen=True)
class Segments:
    """The segments of all tests, one per row: tests in their order, and of each test the newest segment first.

    `offsets[t]` is the first row of test `t`, and `offsets[t + 1]` the row after its last. A segment has the builds from
    `start` up to, but not including, `stop`. Its first build is one with data, except in the oldest segment. The change
    lies, with 99 %, in one of the builds `earliest` to `latest`, both included; for the oldest segment both are 0.
    """

    offsets: Integers
    test: Integers
    start: Integers
    stop: Integers
    failures: Integers
    runs: Integers
    earliest: Integers
    latest: Integers

    @property
    def newest(self) -> Integers:
        """The row of each test's newest segment."""
        return self.offsets[:-1]

    @property
    def changed(self) -> NDArray[np.bool_]:
        """True for each test that has a changepoint."""
        return np.diff(self.offsets) > 1


def find_changepoints(
    runs: NDArray[np.integer], failures: NDArray[np.integer], model: ChangeModel = RISE_OR_FALL, tail: float = 0.005
) -> Segments:
    """Split the series of each test, `[tests, builds]` with the oldest build first, into segments of one failure rate.

    A build without runs of a test says nothing of it, but a change may lie in it. `tail` is the probability on each side of
    the range of builds. Raises `ValueError` when the shapes differ or a test has more failures than runs.
    """
    if runs.ndim != 2 or runs.shape != failures.shape:
        raise ValueError(f"runs and failures must have the same two dimensions, not {runs.shape} and {failures.shape}")
    if (failures < 0).any() or (failures > runs).any():
        raise ValueError("failures must be between 0 and the runs")
    tests, builds = runs.shape
    all_runs, all_failures = runs.sum(axis=1, dtype=np.int64), failures.sum(axis=1, dtype=np.int64)
    mixed = np.flatnonzero((all_failures > 0) & (all_failures < all_runs))
    search = _Search(runs, failures, model, int(all_runs[mixed].max(initial=0)))
    whole = np.flatnonzero((all_failures == 0) | (all_failures == all_runs))
    found = [_rows(whole, 0, builds)]
    pending = _rows(mixed, 0, builds)
    while len(pending):
        at = search.best_splits(pending)
        found.append(pending[at == 0])
        test, start, stop = pending[at > 0].T
        middle = at[at > 0]
        pending = np.concatenate([_rows(test, start, middle), _rows(test, middle, stop)])
    rows = np.concatenate(found)
    rows = rows[np.lexsort((-rows[:, 1], rows[:, 0]))]
    test, start, stop = rows.T
    earliest, latest = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    later = np.flatnonzero(start > 0)
    around = np.column_stack([test[later], start[later + 1], stop[later]])
    # Narrower priors than LUCI's make narrower ranges, which miss the change too often.
    earliest[later], latest[later] = _Search(runs, failures, LUCI, search.most_runs).ranges(around, tail)
    in_runs, in_failures = all_runs[test], all_failures[test]
    parts = np.flatnonzero(stop - start < builds)
    in_runs[parts], in_failures[parts] = search.sums(rows[parts])
    offsets = np.searchsorted(test, np.arange(tests + 1))
    return Segments(offsets, test, start, stop, in_failures, in_runs, earliest, latest)


def _rows(test: Integers, start: Integers | int, stop: Integers | int) -> Integers:
    return np.column_stack(np.broadcast_arrays(test, start, stop)).astype(np.int64)


class _Search:
    """Compare all positions of a change in parts of series; a part is a row (test, first build, build after the last)."""

    def __init__(self, runs: NDArray[np.integer], failures: NDArray[np.integer], model: ChangeModel, most_runs: int) -> None:
        self._runs, self._failures, self._threshold = runs, failures, model.threshold
        # The log-likelihood is a sum of log-gammas of whole numbers plus a constant: tables are far faster than `betaln`.
        # The lower prior's table is followed by the higher one's.
        self.most_runs, self._size, counts = most_runs, most_runs + 1, np.arange(most_runs + 1)
        priors = (model.lower, model.higher)
        self._failed = np.concatenate([gammaln(prior.alpha + counts) - gammaln(prior.alpha) for prior in priors])
        self._passed = np.concatenate([gammaln(prior.beta + counts) - gammaln(prior.beta) for prior in priors])
        sums = [prior.alpha + prior.beta for prior in priors]
        self._both = np.concatenate([gammaln(each + counts) - gammaln(each) for each in sums])

    def best_splits(self, parts: Integers) -> Integers:
        """The build at which a second segment begins in each part, or 0 where no split is worth it."""
        best = np.zeros(len(parts), np.int64)
        for rows in self._chunks(len(parts)):
            gains, runs = self._gains(parts[rows])
            gains[runs[:, 1:] == 0] = -np.inf
            at = gains.argmax(axis=1)
            best[rows] = np.where(gains[np.arange(len(at)), at] > self._threshold, at + 1, 0)
        return best

    def ranges(self, parts: Integers, tail: float) -> tuple[Integers, Integers]:
        """The first and the last build at which the change of each part may be, if each is as likely beforehand."""
        earliest, latest = np.zeros(len(parts), np.int64), np.zeros(len(parts), np.int64)
        for rows in self._chunks(len(parts)):
            gains, _ = self._gains(parts[rows])
            weights = np.exp(gains - gains.max(axis=1, keepdims=True))
            below = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
            earliest[rows] = (below < tail).sum(axis=1) + 1
            latest[rows] = (below < 1 - tail).sum(axis=1) + 1
        return earliest, latest

    def sums(self, parts: Integers) -> tuple[Integers, Integers]:
        """The runs and the failures of each part."""
        runs, failures = np.zeros(len(parts), np.int64), np.zeros(len(parts), np.int64)
        for rows in self._chunks(len(parts)):
            runs[rows], failures[rows] = (each.sum(axis=1) for each in self._counts(parts[rows]))
        return runs, failures

    def _chunks(self, parts: int) -> Iterator[slice]:
        step = max(1, _CELLS // max(1, self._runs.shape[1]))
        return (slice(first, first + step) for first in range(0, parts, step))

    def _counts(self, parts: Integers) -> tuple[Integers, Integers]:
        """The runs and failures of each part per build, which are 0 outside the part."""
        test, start, stop = parts.T
        build = np.arange(self._runs.shape[1])
        inside = (build >= start[:, None]) & (build < stop[:, None])
        runs, failures = (np.where(inside, each[test], 0).astype(np.int64) for each in (self._runs, self._failures))
        return runs, failures

    def _gains(self, parts: Integers) -> tuple[Floats, Integers]:
        """The gain in log-likelihood of each part by a change at the builds 1, 2, …; and the runs per build."""
        runs, failures = self._counts(parts)
        old_runs, old_failures = runs.cumsum(axis=1), failures.cumsum(axis=1)
        all_runs, all_failures = old_runs[:, -1:], old_failures[:, -1:]
        old_runs, old_failures = old_runs[:, :-1], old_failures[:, :-1]
        new_runs, new_failures = all_runs - old_runs, all_failures - old_failures
        difference = new_failures * old_runs - old_failures * new_runs
        rises = np.where(difference > 0, self._size, 0)
        unsplit = np.maximum(
            self._log_likelihood(all_failures, all_runs, 0), self._log_likelihood(all_failures, all_runs, self._size)
        )
        gains = self._log_likelihood(old_failures, old_runs, self._size - rises)
        gains += self._log_likelihood(new_failures, new_runs, rises)
        gains -= unsplit
        gains[difference == 0] = -np.inf  # two segments of one rate are one; so it is where a side has no runs
        return gains, runs

    def _log_likelihood(self, failures: Integers, runs: Integers, prior: Integers | int) -> Floats:
        passed = self._passed[runs - failures + prior]
        return np.asarray(self._failed[failures + prior] + passed - self._both[runs + prior])
