from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from accel_ci.quality.drift import find_duration_drift, find_rate_drift

Seconds = NDArray[np.float64]
BASELINE = np.arange(40) < 30


def durations(tests: int, seed: int, builds: int = 40, spread: float = 0.1) -> Seconds:
    generator = np.random.default_rng(seed)
    seconds = np.exp(generator.normal(1.5, 0.5, (tests, 1)) + generator.normal(0, spread, (tests, builds)))
    return np.where(generator.random(seconds.shape) < 0.1, np.nan, seconds)


def test_a_rise_has_the_p_value_of_fishers_exact_test() -> None:
    generator = np.random.default_rng(1)
    old_runs, new_runs = generator.integers(0, 60, 200), generator.integers(0, 40, 200)
    old, new = generator.binomial(old_runs, 0.1), generator.binomial(new_runs, 0.2)
    found = find_rate_drift(old_runs, old, new_runs, new)
    for place in range(200):
        table = [[new[place], new_runs[place] - new[place]], [old[place], old_runs[place] - old[place]]]
        expected = (
            1.0 if 0 in (old_runs[place], new_runs[place]) else stats.fisher_exact(table, alternative="greater").pvalue
        )
        assert found.p_value[place] == pytest.approx(expected)


def test_a_slow_rise_is_found_among_many_tests_and_a_fall_is_not() -> None:
    generator = np.random.default_rng(2)
    old_runs, new_runs = np.full(20_000, 900), np.full(20_000, 300)
    old, new = generator.binomial(old_runs, 0.005), generator.binomial(new_runs, 0.005)
    old[:2], new[:2] = 5, 30
    old[2], new[2] = 200, 0
    found = find_rate_drift(old_runs, old, new_runs, new)
    assert np.flatnonzero(found.found).tolist() == [0, 1]
    assert (found.before[0], found.after[0]) == (5 / 900, 0.1)


def test_no_data_is_no_evidence_of_failures() -> None:
    found = find_rate_drift(np.array([0, 90, 90]), np.array([0, 0, 0]), np.array([90, 0, 90]), np.array([90, 0, 0]))
    assert found.p_value.tolist() == [1, 1, 1]
    assert not found.found.any()
    assert np.isnan(found.before[0])
    assert np.isnan(found.after[1])


def test_healthy_tests_do_not_hide_a_rise() -> None:
    def adjusted(healthy: int) -> float:
        counts = np.concatenate([[[100], [1], [40], [9]], np.tile([[100], [0], [40], [0]], healthy)], axis=1)
        return float(find_rate_drift(*counts).adjusted[0])

    assert adjusted(100_000) == adjusted(0)


def test_a_slowdown_has_the_p_value_of_mann_and_whitney() -> None:
    seconds = np.round(durations(200, seed=3), 1)  # with ties
    found = find_duration_drift(seconds, BASELINE, least_runs=1, least_seconds=0, tests_for_pace=1000)
    for place, row in enumerate(seconds):
        old, new = (part[np.isfinite(part)] for part in (row[BASELINE], row[~BASELINE]))
        expected = stats.mannwhitneyu(new, old, alternative="greater", method="asymptotic").pvalue
        assert found.p_value[place] == pytest.approx(expected)
        assert found.ratio[place] == pytest.approx(np.exp(np.median(np.log(new)) - np.median(np.log(old))))


def test_tests_that_became_twice_as_slow_are_found_and_no_others() -> None:
    seconds = durations(5000, seed=4)
    seconds[:20, 30:] *= 2
    seconds[20:40, 30:] *= 1.2
    seconds[40:60, 30:] /= 3
    seconds[60:80] /= 1000  # too short to matter
    seconds[60:80, 30:] *= 3
    found = find_duration_drift(seconds, BASELINE)
    assert np.flatnonzero(found.found).tolist() == list(range(20))
    assert found.ratio[:20] == pytest.approx(2, rel=0.15)


def test_four_builds_suffice_for_one_slow_test_among_many() -> None:
    seconds = durations(5000, seed=5)
    seconds[7, 36:] *= 2
    assert np.flatnonzero(
        find_duration_drift(seconds[:, [*range(30), *range(36, 40)]], np.arange(34) < 30).found
    ).tolist() == [7]


def test_a_few_slow_runs_are_no_drift() -> None:
    seconds = durations(2000, seed=6)
    outliers = np.random.default_rng(7).random(seconds.shape) < 0.05
    assert not find_duration_drift(np.where(outliers, 10 * seconds, seconds), BASELINE).found.any()


def test_a_slow_build_slows_no_test() -> None:
    seconds = durations(2000, seed=8)
    seconds[:, 30:] *= 2.5
    seconds[3, 30:] *= 2
    found = find_duration_drift(seconds, BASELINE)
    assert np.flatnonzero(found.found).tolist() == [3]
    assert found.pace[35] / found.pace[5] == pytest.approx(2.5, rel=0.05)


def test_few_tests_have_no_pace_that_would_hide_a_slowdown() -> None:
    seconds = durations(3, seed=9)
    seconds[:, 30:] *= 2
    assert find_duration_drift(seconds, BASELINE).found.tolist() == [True, True, True]


@pytest.mark.parametrize("missing", ["baseline", "new", "both"])
def test_no_data_is_no_evidence_of_time(missing: str) -> None:
    seconds = durations(1, seed=10)
    seconds[:, 30:] *= 3
    gone = {"baseline": BASELINE, "new": ~BASELINE, "both": np.ones(40, bool)}[missing]
    found = find_duration_drift(np.where(gone, np.nan, seconds), BASELINE)
    assert (found.found.tolist(), found.p_value.tolist()) == ([False], [1.0])
    assert np.isnan(found.ratio[0])


def test_a_permutation_of_the_tests_permutes_the_answer() -> None:
    seconds = durations(500, seed=11)
    seconds[:50, 30:] *= 2
    order = np.random.default_rng(12).permutation(500)
    plain, permuted = find_duration_drift(seconds, BASELINE), find_duration_drift(seconds[order], BASELINE)
    assert plain.found.sum() == 50
    np.testing.assert_array_equal(permuted.found, plain.found[order])
    np.testing.assert_allclose(permuted.adjusted, plain.adjusted[order])


def test_ten_builds_suffice_for_one_slow_test_of_two_long_ones() -> None:
    """The normal approximation would put the p-value at 0.0061, and miss it."""
    seconds = durations(2, seed=13)[:, 25:35]
    seconds = np.where(np.isfinite(seconds), seconds, 2.0 + np.arange(10) / 100)
    seconds[0, 5:] *= 20
    found = find_duration_drift(seconds, np.arange(10) < 5)
    assert found.found.tolist() == [True, False]
    assert found.p_value[0] == pytest.approx(1 / 252)
    old, new = seconds[1, :5], seconds[1, 5:]
    assert found.p_value[1] == pytest.approx(stats.mannwhitneyu(new, old, alternative="greater", method="exact").pvalue)
