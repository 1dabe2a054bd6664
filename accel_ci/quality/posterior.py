"""Say how often tests fail, and how sure that is: posteriors of failure rates under a prior that is learnt from all tests.

A test with 0 failures in 150 runs may still fail in 2 % of them, and one failure in one run does not prove that a test
always fails. So a rate is a probability distribution: a mean with a credible interval. The prior is fitted to all tests
together (empirical Bayes: H. Robbins, 1956; B. Efron, Large-Scale Inference, 2010). It is a mixture of Beta distributions,
because a single one cannot describe many tests that never fail beside a few that fail in 0.5 % or in all of their runs.

A rate is one of runs of equal source. `within_revisions` counts what may be pooled over builds: across revisions a breakage
and its fix would look like a flake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincc, betaincinv, betaln, expit

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Beta:
    """A Beta distribution of a rate. Its mean is `alpha / (alpha + beta)`."""

    alpha: float
    beta: float


@dataclass(frozen=True)
class Prior:
    """A mixture of Beta distributions with their weights, which sum to 1."""

    parts: tuple[Beta, ...]
    weights: tuple[float, ...]


JEFFREYS = Prior((Beta(0.5, 0.5),), (1.0,))
"""A prior for a rate of which nothing is known (H. Jeffreys, 1946)."""

_MEANS = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 0.6, 0.9, 0.97, 0.99, 0.999)
_PARTS = tuple(Beta(2.0, 2 / mean - 2) if mean < 0.5 else Beta(2 / (1 - mean) - 2, 2.0) for mean in _MEANS)
_USUAL = np.array([0.9 / 5 if mean <= 1e-4 else 0.08 / 7 if mean < 0.5 else 0.02 / 5 for mean in _MEANS])
_USUAL_TESTS = 10
"""The usual shares of healthy, flaky and broken tests count as much as so many tests; with few tests they decide."""

USUAL = Prior(_PARTS, tuple(_USUAL))
"""The prior of a fleet of which nothing is known: of 100 tests 90 are healthy, 8 fail at times and 2 mostly."""


@dataclass(frozen=True)
class Rate:
    """Failure rates, one per test: the mean of the posterior, and an interval with equal tails."""

    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Pooled:
    """Failures and runs of each test, summed over the builds in which it passed at least once.

    `mixed` is the number of builds with both outcomes, each of which proves a flake, and `only_failed` of those that are
    left out, since a breakage fails in all runs of a build.
    """

    failures: Integers
    runs: Integers
    mixed: Integers
    only_failed: Integers


def fit_prior(failures: ArrayLike, runs: ArrayLike) -> Prior:
    """Fit the prior to the failures and runs of all tests, by the most likely weights of fixed Beta distributions.

    It is an expectation maximisation with pseudo-counts: without tests, or without runs, it returns `USUAL`.
    """
    counted, _, tests = _distinct(failures, runs)
    seen = counted[:, 1] > 0
    tests = np.where(seen, tests, 0)
    likelihood = np.exp(_log_likelihood(counted, USUAL))
    usual = _USUAL * _USUAL_TESTS
    weights = _USUAL
    for _ in range(2000):
        shares = likelihood * weights
        updated = usual + tests @ (shares / shares.sum(axis=1, keepdims=True))
        updated /= updated.sum()
        if np.abs(updated - weights).max() < 1e-9:
            break
        weights = updated
    return Prior(_PARTS, tuple(float(weight) for weight in weights))


def rate(failures: ArrayLike, runs: ArrayLike, prior: Prior = USUAL, level: float = 0.95) -> Rate:
    """The failure rate of each test with its credible interval of the given level, which has equal tails.

    A test without runs has the prior's rate: no data is no evidence.
    """
    tail = (1 - level) / 2
    return Rate(
        _by_distinct(failures, runs, lambda counted: _mean(counted, prior)),
        _by_distinct(failures, runs, lambda counted: _quantile(counted, prior, tail)),
        _by_distinct(failures, runs, lambda counted: _quantile(counted, prior, 1 - tail)),
    )


def upper_bound(failures: ArrayLike, runs: ArrayLike, prior: Prior = USUAL, level: float = 0.95) -> Floats:
    """The rate below which each test's rate is with the probability `level`."""
    return _by_distinct(failures, runs, lambda counted: _quantile(counted, prior, level))


def chance_above(threshold: float, failures: ArrayLike, runs: ArrayLike, prior: Prior = USUAL) -> Floats:
    """The probability that each test's failure rate is above a threshold."""

    def above(counted: Integers) -> Floats:
        weights, alpha, beta = _posterior(counted, prior)
        return np.asarray((weights * betaincc(alpha, beta, threshold)).sum(axis=1))

    return _by_distinct(failures, runs, above)


def chance_to_fail_all(reruns: ArrayLike, failures: ArrayLike, runs: ArrayLike, prior: Prior = USUAL) -> Floats:
    """The probability that each test would fail that many more runs in a row by its known rate alone.

    It is the mean of f^n over the posterior. Where it is tiny, a failure in all runs of a build is no flake of that test.
    """
    more = np.broadcast_to(np.asarray(reruns, dtype=np.int64), np.shape(failures))
    chances = np.ones(np.shape(failures))
    for count in np.unique(more[more > 0]):
        chosen = more == count

        def chance(counted: Integers, count: np.int64 = count) -> Floats:
            weights, alpha, beta = _posterior(counted, prior)
            return np.asarray((weights * np.exp(betaln(alpha + count, beta) - betaln(alpha, beta))).sum(axis=1))

        chances[chosen] = _by_distinct(np.asarray(failures)[chosen], np.asarray(runs)[chosen], chance)
    return chances


def runs_to_prove_a_flake(failure_rate: ArrayLike, doubt: float = 0.01) -> Floats:
    """The number of reruns of which one at least passes with the probability `1 - doubt`, if the failure is a flake.

    A flake with rate f fails all n reruns with the probability f^n, so n = ⌈ln doubt / ln f⌉. It is 1 for a test that never
    fails, and infinite for one that always does.
    """
    rates = np.asarray(failure_rate, dtype=np.float64)
    with np.errstate(divide="ignore"):
        # -0.0 / -inf would be 0, and a rate of 1 has the logarithm -0.0.
        needed = np.ceil(np.log(doubt) / np.minimum(np.log(rates), -0.0))
    return np.asarray(np.maximum(needed, 1.0))


def within_revisions(runs: NDArray[np.integer], failures: NDArray[np.integer]) -> Pooled:
    """Pool runs and failures, `[tests, builds]`, of tests over builds, each of which has one revision and variant.

    Builds in which all runs failed are left out. A flake that fails all of its n runs of a build by chance, with the
    probability f^n, is left out with them, so the rate of one that fails more often than it passes is understated.
    """
    passed = failures < runs
    mixed = passed & (failures > 0)
    only_failed = (runs > 0) & ~passed
    return Pooled(
        np.where(passed, failures, 0).sum(axis=1, dtype=np.int64),
        np.where(passed, runs, 0).sum(axis=1, dtype=np.int64),
        mixed.sum(axis=1, dtype=np.int64),
        only_failed.sum(axis=1, dtype=np.int64),
    )


def crowded_builds(runs: NDArray[np.integer], failures: NDArray[np.integer]) -> NDArray[np.bool_]:
    """The builds in which far more tests than usual both passed and failed, from `[tests, builds]`.

    Flaky tests fail independently of one another. So many at once have a common cause, such as a bad card, and say nothing
    of each test: leave those builds out of the pool. "Far more" is 6 standard deviations above the median, by the median
    absolute deviation or by Poisson, whichever is larger; with fewer than 5 builds none is usual.
    """
    mixed = ((failures > 0) & (failures < runs)).sum(axis=0)
    if len(mixed) < 5:
        return np.zeros(len(mixed), np.bool_)
    usual = np.median(mixed)
    spread = max(1.4826 * float(np.median(np.abs(mixed - usual))), float(np.sqrt(usual)), 1.0)
    return np.asarray(mixed > usual + 6 * spread)


def transitions(
    test: NDArray[np.integer], group: NDArray[np.integer], failed: NDArray[np.bool_], tests: int
) -> tuple[Integers, Integers]:
    """Count the changes between pass and fail in the runs of each test, and the pairs of runs in which one could be.

    The runs are in their order, with test numbers below `tests`. Only runs of the same test and group that follow one
    another make a pair; a group is a revision and variant, never more. Give both counts to `rate` for the transition rate:
    failures in bursts change seldom, and independent ones with the rate f in 2 f (1 - f) of the pairs.
    """
    order = np.lexsort((np.arange(len(test)), group, test))
    test, group, failed = test[order], group[order], failed[order]
    pair = (test[1:] == test[:-1]) & (group[1:] == group[:-1])
    changed = pair & (failed[1:] != failed[:-1])
    return np.bincount(test[1:][changed], minlength=tests), np.bincount(test[1:][pair], minlength=tests)


def _distinct(failures: ArrayLike, runs: ArrayLike) -> tuple[Integers, Integers, Integers]:
    """The different pairs of failures and runs, the pair of each test, and the tests of each pair: they are few."""
    counts = np.stack([np.ravel(failures), np.ravel(runs)], axis=1).astype(np.int64)
    if (counts < 0).any() or (counts[:, 0] > counts[:, 1]).any():
        raise ValueError("failures must be between 0 and the runs")
    packed, place, tests = np.unique(counts @ np.array([1 << 32, 1]), return_inverse=True, return_counts=True)
    return np.stack([packed >> 32, packed & 0xFFFFFFFF], axis=1), place.ravel(), tests


def _by_distinct(failures: ArrayLike, runs: ArrayLike, function: Callable[[Integers], Floats]) -> Floats:
    counted, place, _ = _distinct(failures, runs)
    return function(counted)[place].reshape(np.shape(failures))


def _posterior(counted: Integers, prior: Prior) -> tuple[Floats, Floats, Floats]:
    """The weights, alphas and betas of the parts of each pair's posterior."""
    weights = np.exp(_log_likelihood(counted, prior)) * prior.weights
    weights /= weights.sum(axis=1, keepdims=True)
    alpha = np.array([part.alpha for part in prior.parts]) + counted[:, :1]
    beta = np.array([part.beta for part in prior.parts]) + (counted[:, 1:] - counted[:, :1])
    return weights, alpha.astype(np.float64), beta.astype(np.float64)


def _log_likelihood(counted: Integers, prior: Prior) -> Floats:
    """The log-likelihood of each pair under each part of the prior, up to a constant per pair."""
    alpha, beta = (np.array([getattr(part, name) for part in prior.parts]) for name in ("alpha", "beta"))
    failures, runs = counted[:, :1], counted[:, 1:]
    found = betaln(alpha + failures, beta + runs - failures) - betaln(alpha, beta)
    return np.asarray(found - found.max(axis=1, keepdims=True))


def _mean(counted: Integers, prior: Prior) -> Floats:
    weights, alpha, beta = _posterior(counted, prior)
    return np.asarray((weights * alpha / (alpha + beta)).sum(axis=1))


def _quantile(counted: Integers, prior: Prior, probability: float) -> Floats:
    weights, alpha, beta = _posterior(counted, prior)
    if len(prior.parts) == 1:
        return np.asarray(betaincinv(alpha, beta, probability)[:, 0])
    low, high = np.full(len(counted), -40.0), np.full(len(counted), 40.0)  # in log-odds, where rates near 0 and 1 have room
    for _ in range(45):
        middle = (low + high) / 2
        below = (weights * betainc(alpha, beta, expit(middle)[:, None])).sum(axis=1) < probability
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(expit((low + high) / 2))
