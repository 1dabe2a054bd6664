"""The results store: every attempt is a row of a Parquet dataset, kept in a folder or a bucket.

    day=YYYY-MM-DD/<revision>~<variant>~<suite>.parquet           the attempts
    rollups/day=YYYY-MM-DD/<revision>~<variant>~<suite>.arrow     what each test did in that build
    windows/<days>/<variant>~<suite>.arrow                        running sums over the last days

Attempts are written whole or not at all, and a build that is stored again replaces its rows. The day is that of the
revision, so that a rerun after midnight replaces its rows as well. Everything else is derived: a rollup that is missing or
older than its attempts is made again when it is needed. Here belong writing and reading; names are in `stored_suite.py`,
sums over days in `history.py`, queries for people in `questions.py`.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from accel_ci.config.settings import Project
from accel_ci.errors import AccelCiError, DamagedError
from accel_ci.model import Build
from accel_ci.results.columns import conform, database, literal_path, release_memory
from accel_ci.results.rollups import ROLLUP, Rollup, encode, judge_tests, named
from accel_ci.results.rows import ATTEMPTS
from accel_ci.results.stored_suite import ROLLUPS, TRIES, AttemptsReplacedError, StoredSuite, encoded, parse_entry
from accel_ci.results.threads import prefetch
from accel_ci.storage.bucket import open_bucket
from accel_ci.storage.object_store import Entry, FolderStore, ObjectStore
from accel_ci.storage.s3 import environment_keys

_LOG = logging.getLogger(__name__)

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
_MOVED_DAYS = timedelta(days=31)


class ResultsStore:
    """Attempts at a place, a local folder by default."""

    def __init__(
        self,
        place: Path | ObjectStore,
        first_day: date | None = None,
        listed: Mapping[Build, Sequence[StoredSuite]] | None = None,
        counts: Callable[[Build], bool] = lambda build: True,
    ) -> None:
        self.objects: ObjectStore = FolderStore(place) if isinstance(place, Path) else place
        self._first_day = first_day
        self._listed = listed
        self._counts = counts

    def write_rows(self, build: Build, day: date, suite: str, slices: Iterable[pa.Table]) -> StoredSuite:
        """Store rows of `accel_ci.results.rows` as all that there is of a suite of a build, and their rollup.

        The rows come in the order of tests, in slices of whole tests. Rows that were stored for another day, up to a month
        away, go: a build is in the store once.
        """
        name = f"{'~'.join(map(encoded, (build.revision, build.variant, suite)))}.parquet"
        if len(name) > _LONGEST_NAME:
            raise AccelCiError(f"{build.name}, suite {suite}: the names together are too long for a file name; shorten them")
        sink = pa.BufferOutputStream()
        judged: list[pa.Table] = [ROLLUP.empty_table()]
        with pq.ParquetWriter(sink, ATTEMPTS, **_LAYOUT) as writer:
            for rows, tests in prefetch(lambda part: (part[0], judge_tests(*part)), _with_first_rows(slices)):
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

    def around(self, day: date) -> ResultsStore:
        """The store for questions about builds of that day and later: it spares listing the days long before."""
        return ResultsStore(self.objects, day - _MOVED_DAYS, counts=self._counts)

    def of_builds(self, counts: Callable[[Build], bool]) -> ResultsStore:
        """The same store for questions about some builds alone: those that count."""
        return ResultsStore(self.objects, self._first_day, self._listed, counts)

    def at_one_moment(self) -> ResultsStore:
        """The same store as it is now, listed once: for many questions that are asked together."""
        listed: defaultdict[Build, list[StoredSuite]] = defaultdict(list)
        for stored in self.suites():
            listed[stored.build].append(stored)
        return ResultsStore(self.objects, self._first_day, listed, self._counts)

    def suites(
        self,
        since: date | None = None,
        until: date | None = None,
        build: Build | None = None,
        variant: str | None = None,
        suite: str | None = None,
    ) -> list[StoredSuite]:
        """List what is stored, from the first day to the last, in the order of days and names."""
        since = since or self._first_day or date.min
        if self._listed is not None and build is not None:
            found: Iterable[StoredSuite | None] = self._listed.get(build, ())
        else:
            found = map(parse_entry, self.objects.list("", f"day={since}", f"day={until or date.max}"))
        return [
            stored
            for stored in found
            if stored is not None
            and since <= stored.day <= (until or date.max)
            and build in (None, stored.build)
            and variant in (None, stored.build.variant)
            and suite in (None, stored.suite)
            and self._counts(stored.build)
        ]

    def digest(self, stored: StoredSuite) -> str:
        """The SHA-256 of the attempts' file."""
        return hashlib.sha256(pa.memory_map(str(self.objects.fetch(stored.entry))).read_buffer()).hexdigest()

    def newest(self, stored: StoredSuite) -> StoredSuite:
        """The current version of a stored suite; the same if nothing of it is left."""
        days = stored.day - _MOVED_DAYS, stored.day + _MOVED_DAYS
        return next(iter(self.suites(*days, stored.build, suite=stored.suite)), stored)

    def read(self, stored: StoredSuite, columns: Sequence[str] = ATTEMPTS.names, coded: Sequence[str] = ()) -> pa.Table:
        """Attempts of a suite of a build, or those that have replaced them.

        The columns `coded`, of text, come as dictionaries, as they are stored: that is fast where few values are distinct.
        Raises `AccelCiError` when the file is gone or damaged.
        """
        for _ in range(TRIES):
            try:
                return self._read(stored, columns, coded)
            except AccelCiError:
                now = self.objects.find(stored.entry.name)
                if now is None or now.version == stored.entry.version:
                    raise
                stored = replace(stored, entry=now)
        raise AttemptsReplacedError(stored)

    def _read(self, stored: StoredSuite, columns: Sequence[str], coded: Sequence[str] = ()) -> pa.Table:
        try:
            with pq.ParquetFile(self.objects.fetch(stored.entry), memory_map=True, read_dictionary=list(coded)) as file:
                table = file.read([name for name in columns if name in file.schema_arrow.names])
        except (OSError, pa.ArrowException) as error:
            raise DamagedError(
                f"{stored.entry.name} in the results store cannot be read: {error}; "
                f"`accel-ci doctor --repair` sets it aside; ask again, or ingest {stored.build.name} again"
            ) from error
        fields = (ATTEMPTS.field(name) for name in columns)
        types = (
            field.with_type(pa.dictionary(pa.int32(), pa.string())) if field.name in coded else field for field in fields
        )
        return conform(table, pa.schema(types))

    def rollups(self, suites: Sequence[StoredSuite]) -> Iterator[Rollup]:
        """The rollups of these, made anew where they are missing or older than their attempts."""
        for stored, entry in self._rollup_entries(suites):
            yield self._rollup(stored, entry)

    def open_rollups(self, suites: Sequence[StoredSuite]) -> list[tuple[StoredSuite, Rollup]]:
        """Return the rollups of these, closed; those of damaged attempts are left out, and logged."""
        found = []
        for stored, entry in self._rollup_entries(suites):
            try:
                found.append((stored, self._rollup(stored, entry).closed()))
            except DamagedError as error:
                _LOG.warning("passed over: %s", error)
        return found

    def _rollup_entries(self, suites: Sequence[StoredSuite]) -> list[tuple[StoredSuite, Entry | None]]:
        """These with the places of their rollups, None where there is none. A bucket is listed once for all of them."""
        if isinstance(self.objects, FolderStore):
            return [(stored, Entry(stored.rollup_name, "", 0)) for stored in suites]
        days = [f"day={stored.day.isoformat()}" for stored in suites]
        there = {entry.name: entry for entry in self.objects.list(ROLLUPS, min(days), max(days))} if days else {}
        return [(stored, there.get(stored.rollup_name)) for stored in suites]

    def judged(self, stored: StoredSuite | None, columns: Sequence[str] = ROLLUP.names) -> pa.Table:
        """A row for each test of a suite of a build: columns of `ROLLUP`, and `test`. None where nothing is stored."""
        if stored is None:
            return named(ROLLUP.empty_table(), pa.array([], pa.string()))
        [rollup] = self.rollups([stored])
        return named(rollup.table([*columns, "place"]), rollup.read_tests())

    def query(
        self, question: str, parameters: Sequence[Any] | dict[str, Any] = (), suites: Sequence[StoredSuite] | None = None
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
                sound = [stored for stored in suites if self.is_sound(stored)]
                if 0 < len(sound) < len(suites):
                    return self.query(question, parameters, sound)
                raise DamagedError(f"the results store cannot be read: {error}; ask again, or ingest anew") from error

    def is_sound(self, stored: StoredSuite) -> bool:
        """Return whether a stored suite can be read; the fault of one that cannot is logged."""
        try:
            self._read(stored, ["test"])
        except DamagedError as error:
            _LOG.warning("passed over: %s", error)
            return False
        return True

    def _rollup(self, stored: StoredSuite, entry: Entry | None) -> Rollup:
        """The rollup of what is stored now, made anew unless it is at `entry`."""
        for _ in range(TRIES):
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
        raise AttemptsReplacedError(stored)

    def _read_unchanged(self, stored: StoredSuite, columns: Sequence[str] = ATTEMPTS.names) -> pa.Table:
        """Exactly these attempts. Raises `AttemptsReplacedError` when there are others by now, or none."""
        try:
            return self._read(stored, columns)
        finally:
            self._check_unchanged(stored)  # in a folder, the rows may be those of either

    def _check_unchanged(self, stored: StoredSuite) -> None:
        now = self.objects.find(stored.entry.name)
        if now is None or now.version != stored.entry.version:
            raise AttemptsReplacedError(stored)

    def _roll_up(self, stored: StoredSuite, judged: list[pa.Table]) -> Entry:
        """Make a rollup of slices of judged tests, which go out of the list, so that their memory is free early."""
        tests = pa.concat_tables(judged)
        judged.clear()
        release_memory()
        names = stored.day.isoformat(), stored.build.revision, stored.build.variant, stored.suite
        return self.objects.put(stored.rollup_name, encode(tests, stored.entry.version, *names))

    def _open(self, stored: StoredSuite, entry: Entry) -> Rollup | None:
        try:
            return Rollup(self.objects.fetch(entry), lambda: self._read_unchanged(stored, ["test"])["test"])
        except (OSError, pa.ArrowException):
            return None


def open_results(project: Project, *, patient: bool = False) -> ResultsStore:
    """Open a project's store: in its data folder, or in the configured bucket, for which a `patient` one waits.

    Bucket credentials: `ACCEL_CI_S3_ACCESS_KEY` and `…_SECRET_KEY`, else boto3's usual sources.
    """
    settings = project.settings.place_of_results
    if settings.bucket is None:
        return ResultsStore(project.home / "results")
    cache = project.home / "cache" / "results"
    place = settings.bucket, settings.prefix, cache, settings.endpoint
    return ResultsStore(
        open_bucket(*place, environment_keys(), settings.region, settings.patience_seconds if patient else 0.0)
    )


def _with_first_rows(slices: Iterable[pa.Table]) -> Iterator[tuple[pa.Table, int]]:
    first_row = 0
    for rows in slices:
        yield rows, first_row
        first_row += len(rows)
