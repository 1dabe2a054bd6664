"""The results of a suite's tests in the builds of one variant, in order: the input of all judgements on failures.

Shapes and conversions alone belong here; `gather.py` reads them out of the store. Only tests that went wrong at least once
have a row: what is known of the others is that they never did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from accel_ci.model import Build, Trigger
from accel_ci.results.rollups import test_key
from accel_ci.results.timelines import Timeline

if TYPE_CHECKING:
    import numpy as np

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

LINE: tuple[Trigger, ...] = ("nightly", "intraday", "main")
"""The triggers whose builds follow each other on one line of revisions. Others are compared with that line."""


@dataclass(frozen=True)
class Point:
    """A build as a place in a series: the versions of all that its results can depend on.

    `backend` and `upstream` are commits, None where they are not known. `environment` stands for the rest: the other
    packages of the image, the driver. `base` is the commit of the line that a pull request is based on. `drivers` has the
    version of the cards' driver by host, where it is known.
    """

    build: Build
    backend: str | None
    upstream: str | None
    environment: str = ""
    trigger: Trigger = "nightly"
    base: str | None = None
    drivers: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_on_line(self) -> bool:
        """True if it belongs to the line of revisions."""
        return self.trigger in LINE


@dataclass(frozen=True)
class Grid:
    """A row per test that ever went wrong, a column per build on the line; the newest build comes last.

    `fails` and `passes` count attempts, without those lost to the infrastructure; both are 0 where a test did not run.
    `signatures` has a place in `signature_names` for the last failure, and -1 where there is none.
    """

    points: tuple[Point, ...]
    tests: tuple[tuple[str, str], ...]
    """Suite and id."""
    keys: Numbers
    """The keys of the ids in the results store."""
    fails: Numbers
    passes: Numbers
    signatures: Numbers
    signature_names: tuple[str, ...] = ()
    rows: Mapping[tuple[str, str], int] = field(default_factory=dict)
    builds_run: int = 0
    """Builds in which a test without a row ran, at most."""

    def row(self, suite: str, test: str) -> int | None:
        """The row of a test; None for one that never went wrong."""
        return self.rows.get((suite, test))

    def only(self, columns: Sequence[int]) -> Grid:
        """The grid of some of the builds alone, with the tests that went wrong in them; its numbers may be changed."""
        import numpy as np

        rows = np.flatnonzero((self.fails[:, columns] > 0).any(axis=1))
        tests = tuple(self.tests[row] for row in rows.tolist())
        cut = np.ix_(rows, np.asarray(columns, np.int64))
        return Grid(
            tuple(self.points[column] for column in columns), tests, self.keys[rows], self.fails[cut], self.passes[cut],
            self.signatures[cut], self.signature_names, {identity: row for row, identity in enumerate(tests)}, len(columns),
        )  # fmt: skip

    def before(self, column: int) -> Grid:
        """The grid as it was before a column's build."""
        cut = slice(0, column)
        return Grid(
            self.points[:column], self.tests, self.keys, self.fails[:, cut], self.passes[:, cut], self.signatures[:, cut],
            self.signature_names, self.rows, min(self.builds_run, column),
        )  # fmt: skip


@dataclass(frozen=True)
class AttemptRow:
    """One attempt of a test that went wrong, as stored.

    `rerun_in` names the build that ran the failure again, None for an attempt of the build itself.
    """

    suite: str
    test: str
    round: int
    attempt: int
    outcome: str
    card: str | None = None
    host: str | None = None
    infra: str | None = None
    signature: str | None = None
    worker: str | None = None
    rerun_in: str | None = None

    @property
    def process(self) -> tuple[str | None, int, str | None]:
        """Different for attempts that ran in different processes."""
        return self.rerun_in, self.round, self.worker


@dataclass(frozen=True)
class Night:
    """A build to judge: its point, and all attempts of the tests that did not pass at once, reruns included.

    `lost` are tests without any attempt, with the reason.
    """

    point: Point
    attempts: tuple[AttemptRow, ...]
    lost: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def by_test(self) -> dict[tuple[str, str], list[AttemptRow]]:
        """The attempts of each test, in their order."""
        found: dict[tuple[str, str], list[AttemptRow]] = {}
        for row in self.attempts:
            found.setdefault((row.suite, row.test), []).append(row)
        return found


def join_suites(points: Sequence[Point], timelines: Mapping[str, tuple[Sequence[int], Timeline]]) -> Grid:
    """Make a grid of the timelines of some suites, each with the columns of its builds; suites come in order."""
    import numpy as np

    tests = tuple((suite, test) for suite, (_, timeline) in timelines.items() for test in timeline.tests)
    shape = len(tests), len(points)
    fails, passes, signatures = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.full(shape, -1, np.int32)
    keys: list[Numbers] = [np.zeros(0, np.uint64)]
    names: list[str] = []
    begin = 0
    for columns, timeline in timelines.values():
        place = np.ix_(range(begin, begin + len(timeline.tests)), columns)
        fails[place], passes[place] = timeline.failures, timeline.passes
        signatures[place] = np.where(timeline.signatures >= 0, timeline.signatures + len(names), -1)
        keys.append(timeline.keys)
        names += timeline.signature_names
        begin += len(timeline.tests)
    rows = {identity: row for row, identity in enumerate(tests)}
    return Grid(tuple(points), tests, np.concatenate(keys), fails, passes, signatures, tuple(names), rows, len(points))


def make_grid(points: Sequence[Point], cells: Sequence[tuple[int, str, str, int, int, str | None]], builds_run: int) -> Grid:
    """Make a grid of cells: column, suite, test, failed and passed attempts, and the last failure's signature."""
    import numpy as np

    tests = tuple(sorted({(suite, test) for _, suite, test, *_ in cells}))
    rows = {identity: place for place, identity in enumerate(tests)}
    shape = len(tests), len(points)
    fails, passes = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    signatures, names = np.full(shape, -1, np.int32), dict[str, int]()
    for column, suite, test, failed, passed, signature in cells:
        place = rows[suite, test], column
        fails[place], passes[place] = failed, passed
        if signature is not None:
            signatures[place] = names.setdefault(signature, len(names))
    keys = np.array([test_key(test) for _, test in tests], np.uint64)
    return Grid(tuple(points), tests, keys, fails, passes, signatures, tuple(names), rows, builds_run)
