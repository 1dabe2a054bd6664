from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from accel_ci.quality.posterior import (
    JEFFREYS,
    USUAL,
    Beta,
    Prior,
    chance_above,
    chance_to_fail_all,
    crowded_builds,
    fit_prior,
    rate,
    runs_to_prove_a_flake,
    transitions,
    upper_bound,
    within_revisions,
)

MIXTURE = Prior((Beta(2.0, 500.0), Beta(1.0, 3.0), Beta(9.0, 1.0)), (0.7, 0.2, 0.1))


def test_with_one_part_the_posterior_is_a_beta_distribution() -> None:
    failures, runs = np.array([0, 1, 7, 10]), np.array([10, 10, 9, 10])
    found = rate(failures, runs, JEFFREYS, level=0.9)
    expected = stats.beta(0.5 + failures, 0.5 + runs - failures)
    np.testing.assert_allclose(found.mean, expected.mean())
    np.testing.assert_allclose(found.low, expected.ppf(0.05))
    np.testing.assert_allclose(found.high, expected.ppf(0.95))
    np.testing.assert_allclose(upper_bound(failures, runs, JEFFREYS, 0.95), found.high)
    np.testing.assert_allclose(chance_above(0.3, failures, runs, JEFFREYS), expected.sf(0.3))


@pytest.mark.parametrize(("failures", "runs"), [(0, 0), (0, 200), (3, 10), (400, 400)])
def test_a_mixture_agrees_with_integration_over_all_rates(failures: int, runs: int) -> None:
    edges = np.concatenate([np.geomspace(1e-12, 0.5, 200_001), 1 - np.geomspace(0.5, 1e-12, 200_001)[1:]])
    rates = (edges[1:] + edges[:-1]) / 2
    density = sum(
        weight * stats.beta.pdf(rates, part.alpha, part.beta)
        for part, weight in zip(MIXTURE.parts, MIXTURE.weights, strict=True)
    )
    mass = density * np.exp(stats.binom.logpmf(failures, runs, rates)) * np.diff(edges)
    mass /= mass.sum()
    found = rate(failures, runs, MIXTURE, level=0.8)
    assert found.mean == pytest.approx((mass * rates).sum(), rel=1e-4)
    assert found.low == pytest.approx(np.interp(0.1, mass.cumsum(), rates), rel=1e-4)
    assert found.high == pytest.approx(np.interp(0.9, mass.cumsum(), rates), rel=1e-4)
    assert chance_above(0.01, failures, runs, MIXTURE) == pytest.approx(mass[rates > 0.01].sum(), rel=1e-3)
    assert chance_to_fail_all(3, failures, runs, MIXTURE) == pytest.approx((mass * rates**3).sum(), rel=1e-4)


def test_no_data_is_no_evidence() -> None:
    assert fit_prior([], []) == fit_prior([0, 0], [0, 0])
    np.testing.assert_allclose(fit_prior([], []).weights, USUAL.weights)
    assert fit_prior([0, 0, 3], [0, 90, 20]) == fit_prior([0, 3], [90, 20])
    unknown = rate(0, 0)
    assert unknown.low < 1e-5
    assert unknown.high > 0.2


def test_the_prior_is_learnt_from_all_tests() -> None:
    rates = np.random.default_rng(1).beta(2, 400, 4000)
    runs = np.full(4000, 200)
    failures = np.random.default_rng(2).binomial(runs, rates)
    learnt = fit_prior(failures, runs)
    alike = rate(1, 50, learnt).mean
    assert alike == pytest.approx(stats.beta(2 + 1, 400 + 49).mean(), rel=0.3)
    assert rate(1, 50).mean > 2 * alike


def test_a_few_tests_hardly_change_the_usual_prior() -> None:
    learnt = np.array(fit_prior([0, 1, 0], [20, 20, 20]).weights)
    assert np.abs(learnt - np.array(USUAL.weights)).max() < 0.1


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_intervals_contain_as_many_true_rates_as_they_say(level: float) -> None:
    generator = np.random.default_rng(4)
    true = np.where(generator.random(20_000) < 0.5, 1e-5, np.exp(generator.normal(np.log(0.00475), 1.5, 20_000)))
    true, runs = np.minimum(true, 0.9), generator.choice([30, 100, 1000], 20_000)
    failures = generator.binomial(runs, true)
    found, failed = rate(failures, runs, fit_prior(failures, runs), level), failures > 0
    assert np.mean((found.low <= true)[failed] & (true <= found.high)[failed]) == pytest.approx(level, abs=0.03)


def test_a_permutation_of_the_tests_permutes_the_answer() -> None:
    generator = np.random.default_rng(3)
    runs = generator.integers(0, 50, 300)
    failures = generator.binomial(runs, 0.1)
    order = generator.permutation(300)
    prior = fit_prior(failures, runs)
    np.testing.assert_allclose(fit_prior(failures[order], runs[order]).weights, prior.weights)
    np.testing.assert_array_equal(rate(failures[order], runs[order], prior).low, rate(failures, runs, prior).low[order])


def test_more_failures_than_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and the runs"):
        rate(np.array([3]), np.array([2]))


def test_reruns_that_prove_a_flake() -> None:
    assert runs_to_prove_a_flake([0.0, 0.1, 0.5, 0.9, 1.0]).tolist() == [1, 2, 7, 44, np.inf]
    assert 0.9**44 <= 0.01 < 0.9**43


def test_each_test_has_its_chance_to_fail_all_its_reruns() -> None:
    found = chance_to_fail_all([0, 1, 2], [5, 5, 5], [10, 10, 10], JEFFREYS)
    np.testing.assert_allclose(found, [1, 5.5 / 11, 5.5 / 11 * 6.5 / 12])


def test_builds_in_which_all_runs_failed_are_not_pooled() -> None:
    runs = np.array([[1, 3, 2, 0, 1]])
    failures = np.array([[0, 1, 2, 0, 0]])
    found = within_revisions(runs, failures)
    pooled = (found.failures, found.runs, found.mixed, found.only_failed)
    assert [each.tolist() for each in pooled] == [[1], [5], [1], [1]]


def test_a_build_with_a_common_cause_is_crowded() -> None:
    generator = np.random.default_rng(5)
    failures = (generator.random((1000, 10)) < 0.01).astype(int)
    failures[:200, 7] = 1
    failures[500:, 2] = 2  # broken, not mixed
    assert crowded_builds(np.full((1000, 10), 2), failures).tolist() == [build == 7 for build in range(10)]
    assert not crowded_builds(np.full((1000, 4), 2), failures[:, 4:8]).any()


def test_transitions_never_cross_revisions() -> None:
    test = np.array([0, 0, 0, 0, 1, 0, 1])
    group = np.array([0, 0, 1, 1, 0, 1, 0])
    failed = np.array([False, False, True, False, True, True, True])
    changes, pairs = transitions(test, group, failed, tests=3)
    assert changes.tolist() == [2, 0, 0]
    assert pairs.tolist() == [3, 1, 0]
