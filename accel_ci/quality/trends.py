"""Find the tests that slowly became worse: those that take longer, or fail more often, than in the older half of a window.

Breakages are `causes.py`'s part. Here belong tests that no single build shows: 5 % of failures instead of 1 %, or 8 seconds
instead of 4. Of the findings at most 1 % are false on average (`drift.py`); a rise in one step has the builds in which it
lies (`changepoints.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa

from accel_ci.quality.gather import read_grid
from accel_ci.quality.grid import Grid, Point
from accel_ci.results.columns import one_chunk, pairs
from accel_ci.results.history import names
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import StoredSuite

if TYPE_CHECKING:
    from accel_ci.quality.changepoints import Segments

TRENDS = "trends"
"""The manifest."""

LEAST_BUILDS = 8
"""With fewer builds of a variant nothing is said."""


@dataclass(frozen=True)
class SlowerTest:
    """A test's median seconds in the older and in the newer half, and their ratio, free of the pace of whole builds."""

    variant: str
    suite: str
    test: str
    before_s: float
    after_s: float
    ratio: float


@dataclass(frozen=True)
class WorseTest:
    """A test's failure rates in the older and in the newer half.

    `since` and `until` are the builds between which it rose, None where it rose slowly.
    """

    variant: str
    suite: str
    test: str
    before: float
    after: float
    since: str | None
    until: str | None


@dataclass(frozen=True)
class Trends:
    """The findings of all variants, worst first."""

    slower: tuple[SlowerTest, ...] = ()
    worse: tuple[WorseTest, ...] = ()
    day: date | None = None


def find_trends(store: ResultsStore, lines: Sequence[Sequence[Point]]) -> Trends:
    """Find the trends of each line of builds, all of one variant and the oldest first."""
    slower: list[SlowerTest] = []
    worse: list[WorseTest] = []
    for points in lines:
        if len(points) >= LEAST_BUILDS:
            slower += _slower(store, points)
            worse += worse_tests(read_grid(store, points))
    slower.sort(key=lambda each: (-each.ratio, each.variant, each.suite, each.test))
    worse.sort(key=lambda each: (each.before - each.after, each.variant, each.suite, each.test))
    return Trends(tuple(slower), tuple(worse))


def worse_tests(grid: Grid) -> list[WorseTest]:
    """Find the tests of a grid that fail more often in its newer half, by drift or by the newest changepoint.

    A test counts as failed in a build if any attempt failed. One that fails in every build of late is broken: it is left to
    the causes.
    """
    import numpy as np

    from accel_ci.quality.changepoints import find_changepoints
    from accel_ci.quality.drift import find_rate_drift

    runs = ((grid.fails + grid.passes) > 0).astype(np.int64)
    failures = (grid.fails > 0).astype(np.int64)
    half = len(grid.points) // 2
    parts = (runs[:, :half], failures[:, :half], runs[:, half:], failures[:, half:])
    drift = find_rate_drift(*(part.sum(axis=1) for part in parts))
    segments = find_changepoints(runs, failures)
    newest, found = segments.newest, []
    for row, (suite, test) in enumerate(grid.tests):
        segment = newest[row]
        rose = bool(segments.changed[row]) and _rate(segments, segment) > _rate(segments, segment + 1)
        broken = segments.failures[segment] == segments.runs[segment]
        if broken or not (rose or drift.found[row]):
            continue
        since = grid.points[int(segments.earliest[segment])].build.name if rose else None
        until = grid.points[int(segments.latest[segment])].build.name if rose else None
        variant = grid.points[0].build.variant
        before, after = float(np.nan_to_num(drift.before[row])), float(np.nan_to_num(drift.after[row]))
        if after > before:
            found.append(WorseTest(variant, suite, test, before, after, since, until))
    return found


def _rate(segments: Segments, row: int) -> float:
    return float(segments.failures[row] / max(1, segments.runs[row]))


def _slower(store: ResultsStore, points: Sequence[Point]) -> list[SlowerTest]:
    import numpy as np

    from accel_ci.quality.drift import find_duration_drift

    columns = {point.build: column for column, point in enumerate(points)}
    variant, found = points[0].build.variant, []
    by_suite: dict[str, list[StoredSuite]] = {}
    for one in store.suites(variant=variant):
        if one.build in columns:
            by_suite.setdefault(one.suite, []).append(one)
    baseline = np.arange(len(points)) < len(points) // 2
    for suite, suites in by_suite.items():
        rollups = store.open_rollups(suites)
        tables = [(columns[one.build], rollup.table(["key", "duration_s"])) for one, rollup in rollups]
        if not tables:
            continue
        keys = np.unique(np.concatenate([one_chunk(table["key"]).to_numpy() for _, table in tables]))
        seconds = np.full((len(keys), len(points)), np.nan)
        for column, table in tables:
            rows = np.searchsorted(keys, one_chunk(table["key"]).to_numpy())
            seconds[rows, column] = one_chunk(table["duration_s"]).to_numpy(zero_copy_only=False)
        drift = find_duration_drift(seconds, baseline)
        rows = np.flatnonzero(drift.found)
        tests = dict(pairs(names([rollup for _, rollup in rollups[::-1]], pa.array(keys[rows], pa.uint64())), "key", "test"))
        found += [
            SlowerTest(variant, suite, tests[key], *(float(part[row]) for part in (drift.before, drift.after, drift.ratio)))
            for row, key in zip(rows.tolist(), keys[rows].tolist(), strict=True)
            if key in tests
        ]
    return found
