"""The results store: every attempt is a row of a Parquet dataset, kept in a folder or a bucket.

    day=YYYY-MM-DD/<revision>~<variant>~<suite>.parquet           the attempts
    rollups/day=YYYY-MM-DD/<revision>~<variant>~<suite>.arrow     what each test did in that build
    windows/<days>/<variant>~<suite>.arrow                        running sums over the last days

Attempts are written whole or not at all, and a build that is stored again replaces its rows. The day is that of the
revision, so that a rerun after midnight replaces its rows as well. Everything else is derived: a rollup that is missing or
older than its attempts is made again when a question needs it. Here belong names, writing and what reads many files;
questions for people are in `accel_ci.results.questions`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from accel_ci.errors import AccelCiError
from accel_ci.model import Build
from accel_ci.results.columns import conform, database, in_order, kernels, literal_path, pairs, release_memory
from accel_ci.results.prefetch import prefetch
from accel_ci.results.rollups import ROLLUP, Rollup, encode, judge_tests, named
from accel_ci.results.rows import ATTEMPTS
from accel_ci.results.windows import add_up, medians, names
from accel_ci.storage.object_store import Entry, FolderStore, ObjectStore

# Test names come sorted, and most but once: told by what differs from the one before, they take a quarter of the room.
_LAYOUT: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": [
        name for name in ATTEMPTS.names if name not in ("test", "name", "message", "output_tail", "started_at", "duration_s")
    ],
    "column_encoding": {"test": "DELTA_BYTE_ARRAY"},
    "write_statistics": ["test"],
}
_LONGEST_NAME = 240
_TRIES = 8
_MOVED_DAYS = timedelta(days=31)
_ROLLUPS = "rollups"
_COVERS = b"accel_ci.covers.3"  # another number when `SUMS` changes
_LAST = "day=9999-12-31"


@dataclass(frozen=True)
class TestHistory:
    """What one test did in a variant over a window: in how many builds it ran, failed for good, or was flaky.

    `median_s` is None where it was not asked for (`ResultsStore.flaky`), or no attempt ended by itself.
    """

    __test__ = False

    variant: str
    suite: str
    test: str
    builds: int
    failed_builds: int
    flaky_builds: int
    median_s: float | None
    last_failure: str | None


@dataclass(frozen=True)
class StoredSuite:
    """The attempts of one suite of a build, as they are stored."""

    day: date
    build: Build
    suite: str
    entry: Entry

    @property
    def rollup_name(self) -> str:
        """Where its rollup lies."""
        return f"{_ROLLUPS}/{self.entry.name.removesuffix('.parquet')}.arrow"


class AttemptsReplacedError(AccelCiError):
    """Attempts were stored again while a question looked at what had been made of those before."""


_Question = TypeVar("_Question", bound=Callable[..., Any])


def ask_again(question: _Question) -> _Question:
    """Ask anew when attempts are replaced meanwhile, as those of a build that runs are, stage by stage."""

    @wraps(question)
    def ask(*arguments: Any, **named: Any) -> Any:
        for _ in range(_TRIES - 1):
            with suppress(AttemptsReplacedError):
                return question(*arguments, **named)
        return question(*arguments, **named)

    return cast(_Question, ask)


class ResultsStore:
    """Attempts at a place, a local folder by default."""

    def __init__(self, place: Path | ObjectStore) -> None:
        self.objects: ObjectStore = FolderStore(place) if isinstance(place, Path) else place

    @property
    def root(self) -> Path:
        """The folder. Raises `AccelCiError` for a store that is no folder."""
        if not isinstance(self.objects, FolderStore):
            raise AccelCiError("this results store is not a local folder")
        return self.objects.root

    # --- writing --------------------------------------------------------------------------------------------------

    def write_rows(self, build: Build, day: date, suite: str, slices: Iterable[pa.Table]) -> StoredSuite:
        """Store rows of `accel_ci.results.rows` as all that there is of a suite of a build, and their rollup.

        The rows come in the order of tests, in slices of whole tests. Rows that were stored for another day, up to a month
        away, go: a build is in the store once.
        """
        name = f"{'~'.join(map(_encode, (build.revision, build.variant, suite)))}.parquet"
        if len(name) > _LONGEST_NAME:
            raise AccelCiError(f"{build.name}, suite {suite}: the names together are too long for a file name; shorten them")
        sink = pa.BufferOutputStream()
        judged: list[pa.Table] = [ROLLUP.empty_table()]
        with pq.ParquetWriter(sink, ATTEMPTS, **_LAYOUT) as writer:
            for rows, tests in prefetch(_with_tests, _with_first_rows(slices)):
                writer.write_table(conform(rows, ATTEMPTS))
                judged.append(tests)
        entry = self.objects.put(f"day={day.isoformat()}/{name}", sink.getvalue())
        stored = StoredSuite(day, build, suite, entry)
        self._roll_up(stored, judged)
        for other in self.suites(day - _MOVED_DAYS, day + _MOVED_DAYS, build, suite=suite):
            if other.day != day:
                self.objects.delete(other.entry.name)
                self.objects.delete(other.rollup_name)
        return stored

    # --- reading --------------------------------------------------------------------------------------------------

    def suites(
        self,
        since: date | None = None,
        until: date | None = None,
        build: Build | None = None,
        variant: str | None = None,
        suite: str | None = None,
    ) -> list[StoredSuite]:
        """What is stored, from the first day to the last, in the order of days and names."""
        first = f"day={since.isoformat()}" if since else "day="
        last = f"day={until.isoformat()}" if until else _LAST
        found = (_parse(entry) for entry in self.objects.list("", first, last))
        return [
            stored
            for stored in found
            if stored is not None
            and (build is None or stored.build == build)
            and (variant is None or stored.build.variant == variant)
            and (suite is None or stored.suite == suite)
        ]

    def digest(self, stored: StoredSuite) -> str:
        """The SHA-256 of the attempts' file."""
        with self.objects.fetch(stored.entry).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def newest(self, stored: StoredSuite) -> StoredSuite:
        """What the store holds of a suite of a build now; the same where nothing of it is left."""
        days = stored.day - _MOVED_DAYS, stored.day + _MOVED_DAYS
        return next(iter(self.suites(*days, stored.build, suite=stored.suite)), stored)

    def read(self, stored: StoredSuite, columns: Sequence[str] = ATTEMPTS.names) -> pa.Table:
        """Attempts of a suite of a build, or those that have replaced them.

        Raises `AccelCiError` when the file is gone or damaged.
        """
        for _ in range(_TRIES):
            try:
                return self._read(stored, columns)
            except AccelCiError:
                now = self.objects.find(stored.entry.name)
                if now is None or now.version == stored.entry.version:
                    raise
                stored = replace(stored, entry=now)
        raise _replaced(stored)

    def _read(self, stored: StoredSuite, columns: Sequence[str]) -> pa.Table:
        try:
            with pq.ParquetFile(self.objects.fetch(stored.entry), memory_map=True) as file:
                table = file.read([name for name in columns if name in file.schema_arrow.names])
        except (OSError, pa.ArrowException) as error:
            raise AccelCiError(
                f"{stored.entry.name} in the results store cannot be read: {error}; "
                f"ask again, or ingest {stored.build.name} again"
            ) from error
        return conform(table, pa.schema([ATTEMPTS.field(name) for name in columns]))

    def rollups(self, suites: Sequence[StoredSuite]) -> Iterator[Rollup]:
        """The rollups of these, made anew where they are missing or older than their attempts."""
        local = isinstance(self.objects, FolderStore)
        there: dict[str, Entry] = {}
        if suites and not local:
            days = [f"day={stored.day.isoformat()}" for stored in suites]
            there = {entry.name: entry for entry in self.objects.list(_ROLLUPS, min(days), max(days))}
        for stored in suites:
            yield self._rollup(stored, Entry(stored.rollup_name, "", 0) if local else there.get(stored.rollup_name))

    def judged(self, stored: StoredSuite | None, columns: Sequence[str] = ROLLUP.names) -> pa.Table:
        """A row for each test of a suite of a build: columns of `ROLLUP`, and `test`. None where nothing is stored."""
        if stored is None:
            return named(ROLLUP.empty_table(), pa.array([], pa.string()))
        [rollup] = self.rollups([stored])
        return named(rollup.table([*columns, "place"]), rollup.read_tests())

    def query(
        self,
        question: str,
        parameters: Sequence[Any] | dict[str, Any] = (),
        suites: Sequence[StoredSuite] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Rows of a DuckDB question about the view `attempts`, with the columns of `ATTEMPTS` and `day`.

        Raises `AttemptsReplacedError` when other attempts were stored meanwhile, `AccelCiError` when a file is damaged.
        """
        suites = self.suites() if suites is None else suites
        if not suites:
            return []
        import duckdb  # for its errors: see `database`

        with database() as connection:
            try:
                files = [literal_path(self.objects.fetch(stored.entry)) for stored in suites]
                attempts = connection.read_parquet(files, hive_partitioning=True, union_by_name=True)
                attempts.create_view("attempts")
                return connection.execute(question, parameters).fetchall()
            except (OSError, duckdb.IOException, duckdb.InvalidInputException) as error:
                for stored in suites:
                    self._check_unchanged(stored)
                raise AccelCiError(f"the results store cannot be read: {error}; ask again, or ingest anew") from error

    # --- windows of days --------------------------------------------------------------------------------------------

    @ask_again
    def durations(self, variant: str, today: date, window_days: int = 30) -> dict[tuple[str, str], float]:
        """The median seconds of each (suite, test) of a variant over its builds of the window.

        A build counts with the median of the attempts that ended by themselves and were not put down to the infrastructure.
        """
        found: dict[tuple[str, str], float] = {}
        for (_, suite), suites in self._by_suite(today, window_days, variant).items():
            rollups = self._all_rollups(suites)
            table = medians(rollups)
            table = table.filter(kernels.is_valid(table["median_s"]))
            tests = dict(pairs(names(rollups[::-1], table["key"].combine_chunks()), "key", "test"))
            found |= {(suite, tests[key]): seconds for key, seconds in pairs(table, "key", "median_s")}
        return found

    @ask_again
    def histories(self, today: date, window_days: int) -> list[TestHistory]:
        """Every test that ran in the window, by variant. Failures put down to the infrastructure do not count.

        For a million tests this is a million objects; `flaky` is the question that stays small.
        """
        found: list[TestHistory] = []
        for (variant, suite), suites in self._by_suite(today, window_days).items():
            rollups = self._all_rollups(suites)
            sums = add_up(None, rollups, ())
            seconds = dict(pairs(medians(rollups), "key", "median_s"))
            tests = dict(pairs(names(rollups[::-1], sums["key"].combine_chunks()), "key", "test"))
            histories = (_history(variant, suite, tests[row["key"]], row, seconds[row["key"]]) for row in sums.to_pylist())
            found += sorted(histories, key=lambda history: history.test)
        return found

    @ask_again
    def flaky(self, today: date, window_days: int) -> tuple[int, list[TestHistory]]:
        """How many tests ran in the window, and the histories of those that were flaky in at least one build.

        Sums of earlier calls are kept and brought up to date, so that the cost is that of the builds which are new and of
        those which left the window.
        """
        tests, found = 0, []
        for (variant, suite), suites in self._by_suite(today, window_days).items():
            sums = self._sums(variant, suite, suites, window_days)
            tests += len(sums)
            flaky = in_order(sums.filter(kernels.greater(sums["flaky"], 0)), "test").to_pylist()
            found += [_history(variant, suite, row["test"], row, None) for row in flaky]
        return tests, found

    def _by_suite(
        self, today: date, window_days: int, variant: str | None = None
    ) -> dict[tuple[str, str], list[StoredSuite]]:
        groups: defaultdict[tuple[str, str], list[StoredSuite]] = defaultdict(list)
        for stored in self.suites(today - timedelta(days=window_days), today, variant=variant):
            groups[stored.build.variant, stored.suite].append(stored)
        return dict(sorted(groups.items()))

    def _sums(self, variant: str, suite: str, suites: Sequence[StoredSuite], window_days: int) -> pa.Table:
        """The window's sums: those that are kept, with what is new added and what has left taken away."""
        name = f"windows/{window_days}/{_encode(variant)}~{_encode(suite)}.arrow"
        covers = {stored.entry.name: stored.entry.version for stored in suites}
        before = self._kept_sums(name)
        kept: dict[str, str] = json.loads(before.schema.metadata[_COVERS]) if before is not None else {}
        if before is not None and kept == covers:
            return before
        added = [stored for stored in suites if kept.get(stored.entry.name) != stored.entry.version]
        expired = [self._unchanged(name, version) for name, version in kept.items() if covers.get(name) != version]
        older = max(covers) < max(kept, default="")  # a question about the past
        if before is None or older or None in expired or len(added) + len(expired) > len(suites):
            before, added, expired = None, list(suites), []
        gone = [stored for stored in expired if stored is not None]
        sums = add_up(before, self._all_rollups(added), self._all_rollups(gone))
        if not older:
            self._keep_sums(name, sums, covers)
        return sums

    def _kept_sums(self, name: str) -> pa.Table | None:
        entry = self.objects.find(name)
        try:
            sums = None if entry is None else pa.ipc.open_file(pa.memory_map(str(self.objects.fetch(entry)))).read_all()
        except (OSError, pa.ArrowException):
            return None
        return sums if sums is not None and _COVERS in (sums.schema.metadata or {}) else None

    def _keep_sums(self, name: str, sums: pa.Table, covers: dict[str, str]) -> None:
        sums = sums.replace_schema_metadata({_COVERS: json.dumps(covers, sort_keys=True)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, sums.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(sums)
        self.objects.put(name, sink.getvalue())

    def _unchanged(self, name: str, version: str) -> StoredSuite | None:
        """The suite of that name, None when its content is another or it is gone."""
        entry = self.objects.find(name)
        return _parse(entry) if entry is not None and entry.version == version else None

    # --- rollups ----------------------------------------------------------------------------------------------------

    def _all_rollups(self, suites: Sequence[StoredSuite]) -> list[Rollup]:
        return [rollup.closed() for rollup in self.rollups(suites)]

    def _rollup(self, stored: StoredSuite, entry: Entry | None) -> Rollup:
        """The rollup of what is stored now, made anew unless it is at `entry`."""
        for _ in range(_TRIES):
            rollup = self._open(stored, entry) if entry else None
            if rollup is not None and rollup.source == stored.entry.version:
                return rollup
            try:
                rows = self._read_unchanged(stored)
            except AttemptsReplacedError:
                now = self.objects.find(stored.entry.name)
                if now is None:
                    raise
                stored = replace(stored, entry=now)
            else:
                entry = self._roll_up(stored, [judge_tests(rows)])
        raise _replaced(stored)

    def _read_unchanged(self, stored: StoredSuite, columns: Sequence[str] = ATTEMPTS.names) -> pa.Table:
        """Exactly these attempts. Raises `AttemptsReplacedError` when there are others by now, or none."""
        try:
            rows = self._read(stored, columns)
        except AccelCiError:
            self._check_unchanged(stored)
            raise
        self._check_unchanged(stored)  # in a folder, the rows may be those of either
        return rows

    def _check_unchanged(self, stored: StoredSuite) -> None:
        now = self.objects.find(stored.entry.name)
        if now is None or now.version != stored.entry.version:
            raise _replaced(stored)

    def _roll_up(self, stored: StoredSuite, judged: list[pa.Table]) -> Entry:
        """Make a rollup of slices of judged tests, which go out of the list, so that their memory is free early."""
        build, day = stored.build, stored.day.isoformat()
        tests = pa.concat_tables(judged)
        judged.clear()
        release_memory()
        content = encode(tests, stored.entry.version, day, build.revision, build.variant, stored.suite)
        return self.objects.put(stored.rollup_name, content)

    def _open(self, stored: StoredSuite, entry: Entry) -> Rollup | None:
        try:
            return Rollup(self.objects.fetch(entry), lambda: self._read_unchanged(stored, ["test"])["test"])
        except (OSError, pa.ArrowException):
            return None


def _replaced(stored: StoredSuite) -> AttemptsReplacedError:
    return AttemptsReplacedError(f"{stored.entry.name} in the results store was replaced while it was read; ask again")


def _with_first_rows(slices: Iterable[pa.Table]) -> Iterator[tuple[pa.Table, int]]:
    first_row = 0
    for rows in slices:
        yield rows, first_row
        first_row += len(rows)


def _with_tests(part: tuple[pa.Table, int]) -> tuple[pa.Table, pa.Table]:
    return part[0], judge_tests(*part)


def _encode(text: str) -> str:
    """A part of a file name: what is not plain is percent-encoded, and so is the sign that joins the parts."""
    return quote(text, safe="").replace("~", "%7E")


def _parse(entry: Entry) -> StoredSuite | None:
    """What a file is by its name; None for files that are not ours."""
    match = re.fullmatch(r"day=(\d{4}-\d\d-\d\d)/([^~/]+)~([^~/]+)~([^~/]+)\.parquet", entry.name)
    try:
        day = date.fromisoformat(match[1]) if match else None
    except ValueError:
        day = None
    if match is None or day is None:
        return None
    revision, variant, suite = map(unquote, match.groups()[1:])
    return StoredSuite(day, Build(revision, variant), suite, entry)


def _history(variant: str, suite: str, test: str, row: dict[str, Any], median_s: float | None) -> TestHistory:
    return TestHistory(variant, suite, test, row["builds"], row["failed"], row["flaky"], median_s, row["message"])
