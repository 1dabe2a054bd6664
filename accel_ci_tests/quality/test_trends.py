"""Tests that slowly became worse, in a real store."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np

from accel_ci.model import Attempt, Build
from accel_ci.quality.grid import Point, make_grid
from accel_ci.quality.trends import find_trends, worse_tests
from accel_ci.results.store import ResultsStore
from accel_ci_tests.fixtures.stored_attempts import MIDNIGHT, write_attempts

BUILDS = 24
POINTS = [Point(Build(f"nightly-{number:02d}", "py3"), f"b{number}", "u") for number in range(BUILDS)]


def write_builds(store: ResultsStore, slower_from: int) -> None:
    rng = np.random.default_rng(0)
    for number, point in enumerate(POINTS):
        pace = 3.0 if number == 20 else 1.0  # a slow machine
        attempts = []
        for test in range(40):
            seconds = float(pace * (2 + test / 10) * rng.lognormal(0, 0.05))
            seconds *= 2.2 if test == 7 and number >= slower_from else 1
            row = Attempt("unit", f"test_a.py::test_{test}", 1, "passed", MIDNIGHT, seconds, None, None, "0", "host", "w0")
            attempts.append(row)
        write_attempts(store, point.build, date(2026, 11, 1) + timedelta(days=number), attempts)


def test_a_test_that_became_twice_as_slow_is_found_and_a_slow_machine_is_not(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    write_builds(store, BUILDS // 2)
    found = find_trends(store, [POINTS])
    assert [each.test for each in found.slower] == ["test_a.py::test_7"]
    assert 2.0 < found.slower[0].ratio < 2.4
    assert find_trends(store, [POINTS[:6]]).slower == (), "six builds say nothing"


def test_without_a_change_nothing_is_found(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    write_builds(store, BUILDS)
    assert find_trends(store, [POINTS]) == find_trends(store, [])


def test_a_rate_that_rises_is_found_with_its_range_and_a_breakage_is_left_to_the_causes() -> None:
    points = [Point(Build(f"nightly-{number:03d}", "py3"), f"b{number}", "u") for number in range(100)]
    rng = np.random.default_rng(1)
    flaky = rng.random(100) < np.where(np.arange(100) < 60, 0.0, 0.4)
    cells: list[tuple[int, str, str, int, int, str | None]] = []
    for number in range(100):
        cells.append((number, "unit", "rises", int(flaky[number]), 1, None))
        cells.append((number, "unit", "breaks", int(number >= 80), int(number < 80), None))
        cells.append((number, "unit", "same", int(number % 10 == 0), 1, None))
    [found] = worse_tests(make_grid(points, cells, 100))
    assert (found.test, found.before) == ("rises", 0.0)
    assert found.since is not None
    assert found.until is not None
    assert found.since <= "nightly-060" <= found.until
