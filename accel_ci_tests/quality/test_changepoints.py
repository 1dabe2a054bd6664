from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import betaln

from accel_ci.quality.changepoints import LUCI, RISE_OR_FALL, ChangeModel, Segments, find_changepoints
from accel_ci.quality.posterior import Beta

Series = NDArray[np.int64]


def likelihood(prior: Beta, failures: int, runs: int) -> float:
    alpha, beta = prior.alpha, prior.beta
    return float(betaln(alpha + failures, beta + runs - failures) - betaln(alpha, beta))


def gain(runs: Series, failures: Series, at: int, model: ChangeModel) -> float:
    """The gain of a split, computed position by position."""
    old, new = (int(failures[:at].sum()), int(runs[:at].sum())), (int(failures[at:].sum()), int(runs[at:].sum()))
    if old[0] * new[1] == new[0] * old[1]:
        return -np.inf
    priors = (model.lower, model.higher) if new[0] * old[1] > old[0] * new[1] else (model.higher, model.lower)
    unsplit = max(likelihood(prior, old[0] + new[0], old[1] + new[1]) for prior in (model.lower, model.higher))
    return likelihood(priors[0], *old) + likelihood(priors[1], *new) - unsplit


def by_hand(runs: Series, failures: Series, model: ChangeModel, offset: int = 0) -> list[int]:
    """The starts of all segments but the first, oldest first, by plain recursion."""
    gains = {at: gain(runs, failures, at, model) for at in range(1, len(runs)) if runs[at]}
    at = max(gains, key=lambda each: gains[each], default=0)
    if not at or gains[at] <= model.threshold:
        return []
    before = by_hand(runs[:at], failures[:at], model, offset)
    return [*before, offset + at, *by_hand(runs[at:], failures[at:], model, offset + at)]


def rows_of(found: Segments, test: int) -> slice:
    return slice(int(found.offsets[test]), int(found.offsets[test + 1]))


def drawn(tests: int, builds: int, seed: int) -> tuple[Series, Series]:
    """Series with 0 to 3 runs per build and rates that change twice."""
    generator = np.random.default_rng(seed)
    runs = generator.integers(0, 4, (tests, builds))
    rates = generator.choice([0.0, 0.02, 0.5, 1.0], (tests, 3))
    changes = np.sort(generator.integers(0, builds, (tests, 2)), axis=1)
    part = (np.arange(builds) >= changes[:, :1]).astype(int) + (np.arange(builds) >= changes[:, 1:])
    return runs, generator.binomial(runs, np.take_along_axis(rates, part, axis=1))


@pytest.mark.parametrize("model", [LUCI, RISE_OR_FALL], ids=["LUCI", "ours"])
def test_the_segments_are_those_of_a_plain_recursion(model: ChangeModel) -> None:
    runs, failures = drawn(300, 40, seed=1)
    found = find_changepoints(runs, failures, model)
    for test in range(300):
        rows, starts = rows_of(found, test), by_hand(runs[test], failures[test], model)
        assert found.start[rows].tolist() == [*reversed(starts), 0]
        assert found.stop[rows].tolist() == [40, *reversed(starts)]
        for start, stop, failed, ran in zip(
            found.start[rows], found.stop[rows], found.failures[rows], found.runs[rows], strict=True
        ):
            assert (failed, ran) == (failures[test, start:stop].sum(), runs[test, start:stop].sum())
    assert found.changed.sum() > 100
    assert (np.diff(found.offsets) > 2).any()


def test_the_range_holds_99_percent_of_the_positions_by_their_likelihood() -> None:
    runs, failures = drawn(200, 40, seed=2)
    found = find_changepoints(runs, failures)
    for test in np.flatnonzero(found.changed):
        newest, older = found.offsets[test], found.offsets[test] + 1
        start, stop = found.start[older], found.stop[newest]
        parts = runs[test, start:stop], failures[test, start:stop]
        weights = np.exp([gain(*parts, at, LUCI) for at in range(1, stop - start)])
        first, last = found.earliest[newest] - start, found.latest[newest] - start
        weights /= weights.sum()
        assert weights[: first - 1].sum() < 0.005 + 1e-12 <= weights[:first].sum() + 2e-12
        assert weights[last:].sum() <= 0.005 + 1e-12
        assert found.earliest[newest] <= found.start[newest] <= found.latest[newest]


@pytest.mark.parametrize(("before", "after"), [(0.0, 1.0), (0.02, 0.6), (0.0, 0.5)])
def test_the_range_has_the_true_change_in_99_percent(before: float, after: float) -> None:
    generator = np.random.default_rng(3)
    change = generator.integers(25, 50, 3000)
    rates = np.where(np.arange(60) >= change[:, None], after, before)
    failures = (generator.random((3000, 60)) < rates).astype(int)
    found = find_changepoints(np.ones_like(failures), failures)
    single = np.diff(found.offsets) == 2
    newest = found.newest[single]
    inside = (found.earliest[newest] <= change[single]) & (change[single] <= found.latest[newest])
    assert single.sum() > 2000
    assert inside.mean() > 0.985


def test_a_change_may_lie_in_builds_without_data() -> None:
    runs = np.array([[1] * 40 + [0] * 5 + [1] * 10])
    failures = np.where(np.arange(55) >= 45, runs, 0)
    found = find_changepoints(runs, failures)
    assert found.start.tolist() == [45, 0]
    assert found.earliest[0] <= 40
    assert found.latest[0] == 45


def test_no_data_is_no_evidence() -> None:
    generator = np.random.default_rng(4)
    failures = (generator.random((100, 30)) < np.where(np.arange(30) < 20, 0.05, 0.9)).astype(int)
    gaps = np.zeros((100, 60), np.int64)
    gaps[:, ::2] = failures
    runs = np.zeros_like(gaps)
    runs[:, ::2] = 1
    plain, sparse = find_changepoints(np.ones_like(failures), failures), find_changepoints(runs, gaps)
    assert plain.changed.any()
    np.testing.assert_array_equal(sparse.start, 2 * plain.start)
    np.testing.assert_array_equal(sparse.failures, plain.failures)


@pytest.mark.parametrize("value", ["no data", "passes", "failures"])
def test_series_of_one_outcome_have_one_segment(value: str) -> None:
    runs = np.full((3, 500), 0 if value == "no data" else 2)
    found = find_changepoints(runs, runs if value == "failures" else np.zeros_like(runs))
    assert found.start.tolist() == [0, 0, 0]
    assert found.runs.tolist() == runs.sum(axis=1).tolist()
    assert not found.changed.any()


def test_nothing_gives_nothing() -> None:
    none = find_changepoints(np.zeros((0, 9), int), np.zeros((0, 9), int))
    assert (none.offsets.tolist(), none.test.tolist()) == ([0], [])
    assert find_changepoints(np.zeros((2, 0), int), np.zeros((2, 0), int)).runs.tolist() == [0, 0]


def test_a_permutation_of_the_tests_permutes_the_answer() -> None:
    runs, failures = drawn(200, 30, seed=5)
    order = np.random.default_rng(6).permutation(200)
    plain, permuted = find_changepoints(runs, failures), find_changepoints(runs[order], failures[order])
    for place, test in enumerate(order):
        for name in ("start", "stop", "failures", "runs", "earliest", "latest"):
            assert getattr(permuted, name)[rows_of(permuted, place)].tolist() == (
                getattr(plain, name)[rows_of(plain, int(test))].tolist()
            )


def test_the_size_of_a_chunk_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, failures = drawn(100, 30, seed=7)
    whole = find_changepoints(runs, failures)
    monkeypatch.setattr("accel_ci.quality.changepoints._CELLS", 100)
    parts = find_changepoints(runs, failures)
    for name, values in vars(whole).items():
        np.testing.assert_array_equal(getattr(parts, name), values)


@pytest.mark.parametrize(("passes", "most_failures"), [(300, 2), (100, 2), (30, 3), (20, 4)])
def test_a_breakage_is_seen_after_a_few_failures(passes: int, most_failures: int) -> None:
    failures = np.array([[0] * passes + [1] * most_failures])
    found = find_changepoints(np.ones_like(failures), failures)
    assert found.start.tolist() == [passes, 0]


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_series_without_a_change_raise_no_alarm(share: float) -> None:
    failures = (np.random.default_rng(8).random((1000, 300)) < share).astype(np.int8)
    assert find_changepoints(np.ones_like(failures), failures).changed.sum() == 0


def test_wrong_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="same two dimensions"):
        find_changepoints(np.ones((2, 3), int), np.ones((3, 2), int))
    with pytest.raises(ValueError, match="between 0 and the runs"):
        find_changepoints(np.ones((1, 3), int), np.array([[0, 2, 0]]))
