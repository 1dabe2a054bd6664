"""The histories of tests over one week: a script for each bucket of tests, brought up to date with new builds.

    <site>/data/tests/<week>/<bucket>.js       what the tests of a bucket did
    <site>/data/failures/<week>/<id>.js        the failures of a suite of a build, by signature
    <state>/<week>/week.json, <suite>.arrow    what is needed to go on: builds, sizes of the scripts, tests with their places

A new build appends a record to the buckets that it has something to tell of. Nothing else is read or written, so the cost
does not grow with the history. A week is made anew from the store when a build of it was stored again or is gone, and when a
script or the state is missing or damaged, as after a kill.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import msgspec
import pyarrow as pa

from accel_ci.errors import DamagedError
from accel_ci.hud.data.details import BuildDetails
from accel_ci.hud.data.scripts import decode_script, write_script
from accel_ci.hud.data.suite_week import COLUMNS, TESTS, Records, SuiteWeek, merge_records
from accel_ci.model import trigger_of_key
from accel_ci.quality.grid import LINE
from accel_ci.redaction import redact_bytes
from accel_ci.results.columns import one_chunk
from accel_ci.results.rollups import Rollup
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import AttemptsReplacedError, StoredSuite, encoded
from accel_ci.storage.atomic_file import remove_abandoned, write_whole_file

_LOG = logging.getLogger(__name__)

DAMAGED = -1
"""The base of a build whose results cannot be read."""

_LAYOUT = 1  # another number when the records or what they mean change: weeks are then made anew
_TESTS_PER_BUCKET = 128
_MOST_BUCKETS = 4096
_CROWDED = 4
TIMED_A_DAY = 1_000_000
"""So many durations of a day are told of all builds, beyond that those of one build of each variant and suite."""


@dataclass(frozen=True)
class WeekBuild:
    """Results that a week covers: their version in the store, their id and base, and the number of durations told."""

    version: str
    id: str
    base: int
    seconds: int = 0


@dataclass
class WeekState:
    """The number of buckets, the sizes of their scripts and of the suites' tables, and the results in them, by name."""

    buckets: int
    sizes: list[int]
    tables: dict[str, int] = field(default_factory=dict)
    builds: dict[str, WeekBuild] = field(default_factory=dict)
    layout: int = _LAYOUT

    @property
    def stamp(self) -> str:
        """A text that is another one whenever the scripts are."""
        return hashlib.sha256(repr((self.sizes, sorted(each.id for each in self.builds.values()))).encode()).hexdigest()[:10]


def week_of(day: date) -> str:
    """The ISO week of a day, such as `2026-W48`."""
    year, week, _ = day.isocalendar()
    return f"{year}-W{week:02}"


def monday_of(week: str) -> date:
    """The first day of a week."""
    return date.fromisocalendar(int(week[:4]), int(week[6:]), 1)


@dataclass(frozen=True)
class Week:
    """The files of a week."""

    name: str
    site: Path
    state_folder: Path

    @property
    def tests(self) -> Path:
        """The scripts of the buckets."""
        return self.site / "data" / "tests" / self.name

    @property
    def failures(self) -> Path:
        """The failures of each build by signature."""
        return self.site / "data" / "failures" / self.name

    @property
    def state(self) -> Path:
        """The state."""
        return self.state_folder / self.name

    def remove(self) -> None:
        """Remove all files."""
        for folder in (self.state, self.tests, self.failures):  # without its state, the rest counts no more
            shutil.rmtree(folder, ignore_errors=True)

    def update(self, store: ResultsStore, suites: Sequence[StoredSuite], known_tests: int = 0) -> WeekState:
        """Bring the week up to date with what is stored of it, in the order of the store.

        About `known_tests` tests are to be expected, or more. Raises `AttemptsReplacedError` when results are stored again
        meanwhile: then nothing was written.
        """
        state = self._read_state()
        wanted = {stored.entry.name: stored.entry.version for stored in suites}
        if state is not None and any(wanted.get(name) != build.version for name, build in state.builds.items()):
            state = None
        if state is not None and not self._is_whole(state):
            _LOG.warning("the data of the tests in %s are not whole: they are made anew", self.name)
            state = None
        if state is not None and len(state.builds) == len(wanted):
            return state
        new = [stored for stored in suites if state is None or stored.entry.name not in state.builds]
        found = store.open_rollups(new)
        counts = Counter[str]()
        for stored, rollup in found:
            counts[stored.suite] = max(counts[stored.suite], sum(rollup.origin.counts.values()))
        expected = max(known_tests, counts.total())
        if state is not None and expected > _CROWDED * _TESTS_PER_BUCKET * state.buckets < _MOST_BUCKETS * _TESTS_PER_BUCKET:
            return self._anew(store, suites, expected)
        if state is None:
            _LOG.info("the data of the tests in %s are made of %d results", self.name, len(found))
            self.remove()
            state = WeekState(_buckets_for(expected), [])
        try:
            return self._add(state, store, new, found)
        except DamagedError as error:
            _LOG.warning("the data of the tests in %s are damaged (%s): they are made anew", self.name, error)
            return self._anew(store, suites, expected)

    def _anew(self, store: ResultsStore, suites: Sequence[StoredSuite], expected: int) -> WeekState:
        self.remove()
        return self.update(store, suites, expected)

    def _add(
        self, state: WeekState, store: ResultsStore, new: Sequence[StoredSuite], found: Sequence[tuple[StoredSuite, Rollup]]
    ) -> WeekState:
        """Lay builds on the tests, and write what they add. Those that are not in `found` cannot be read."""
        laid: dict[str, SuiteWeek] = {}
        records: Records = {}
        builds = dict(state.builds)
        for stored in new:
            builds[stored.entry.name] = WeekBuild(stored.entry.version, _id_of(stored), DAMAGED)
        signatures: dict[str, bytes] = {}
        for stored, rollup in found:
            if rollup.source != stored.entry.version:
                raise AttemptsReplacedError(stored)
            suite = laid.get(stored.suite) or self._read_suite(stored.suite, state.buckets)
            laid[stored.suite] = suite
            judged, details = rollup.table(COLUMNS), BuildDetails(store, stored, rollup)
            name, seconds = _id_of(stored), len(judged) if _is_timed(stored, builds, len(judged)) else 0
            try:
                base, added = suite.lay(name, judged, details, timed=bool(seconds))
            except DamagedError as error:
                _LOG.warning("passed over: %s", error)
                return self._add(state, store, new, [pair for pair in found if pair[0] != stored])
            merge_records(records, added.items())
            builds[stored.entry.name] = WeekBuild(stored.entry.version, name, base, seconds)
            if details.signatures:
                signatures[name] = msgspec.json.encode(details.signatures)
        return self._write(state, builds, laid, records, signatures)

    def _write(
        self,
        state: WeekState,
        builds: dict[str, WeekBuild],
        laid: dict[str, SuiteWeek],
        records: Records,
        signatures: dict[str, bytes],
    ) -> WeekState:
        """Write the scripts, then the state that makes them count."""
        for folder in (self.tests, self.state):
            folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(folder)
        first = not state.sizes
        sizes = state.sizes or [0] * state.buckets
        for bucket in range(state.buckets) if first else sorted(records):
            name = f"{bucket:03x}"
            before = b"" if first else decode_script((self.tests / f"{name}.js").read_bytes())[1:-1]
            content = b",\n".join([*([before] if before else []), *records.pop(bucket, [])])
            sizes[bucket] = write_script(self.site / "data", f"tests/{self.name}/{name}", b"[%s]" % content)
        for name, content in signatures.items():
            write_script(self.site / "data", f"failures/{self.name}/{name}", redact_bytes(content))
        tables = state.tables | {encoded(suite.suite): self._keep_suite(suite) for suite in laid.values()}
        kept = WeekState(state.buckets, sizes, tables, builds)
        write_whole_file(self.state / "week.json", msgspec.json.encode(kept))
        return kept

    def _read_state(self) -> WeekState | None:
        try:
            state = msgspec.json.decode((self.state / "week.json").read_bytes(), type=WeekState)
        except (OSError, msgspec.MsgspecError):
            return None
        return state if state.layout == _LAYOUT else None

    def _is_whole(self, state: WeekState) -> bool:
        """Return whether each file is there with the size that it was written with."""
        scripts, tables = _sizes(self.tests), _sizes(self.state)
        return all(scripts.get(f"{bucket:03x}.js") == size for bucket, size in enumerate(state.sizes)) and all(
            tables.get(f"{suite}.arrow") == size for suite, size in state.tables.items()
        )

    def suites(self) -> list[str]:
        """The encoded names of the suites."""
        return sorted(path.stem for path in self.state.glob("*.arrow"))

    def _read_suite(self, suite: str, buckets: int) -> SuiteWeek:
        if encoded(suite) not in self.suites():
            return SuiteWeek(suite, buckets)
        table = self.read_tests(encoded(suite))
        bases = [one_chunk(table[name]).to_numpy() for name in table.column_names if name not in TESTS.names]
        return SuiteWeek(suite, buckets, table.select(TESTS.names), bases)

    def read_tests(self, suite: str, columns: Sequence[str] = ()) -> pa.Table:
        """The columns of `TESTS` of a suite by its encoded name, or all with those of its bases.

        Raises `DamagedError` for a file that is none of ours.
        """
        path = self.state / f"{suite}.arrow"
        options = pa.ipc.IpcReadOptions(included_fields=[TESTS.names.index(name) for name in columns], use_threads=False)
        try:
            table = pa.ipc.open_file(pa.memory_map(str(path)), options=options).read_all()
            return table.select(columns or [*TESTS.names, *(name for name in table.column_names if name not in TESTS.names)])
        except (OSError, KeyError, pa.ArrowException) as error:
            raise DamagedError(f"{path}: {error}") from error

    def _keep_suite(self, suite: SuiteWeek) -> int:
        table = suite.tests
        for number, letters in enumerate(suite.bases, 1):
            table = table.append_column(f"base {number}", pa.array(letters))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        content = sink.getvalue().to_pybytes()
        write_whole_file(self.state / f"{encoded(suite.suite)}.arrow", content)
        return len(content)


def _sizes(folder: Path) -> dict[str, int]:
    try:
        with os.scandir(folder) as files:
            return {file.name: file.stat().st_size for file in files}
    except OSError:
        return {}


def _buckets_for(tests: int) -> int:
    return min(_MOST_BUCKETS, 1 << max(0, (tests - 1) // _TESTS_PER_BUCKET).bit_length())


def _id_of(stored: StoredSuite) -> str:
    """A short name for results in this version."""
    return hashlib.sha256(f"{stored.entry.name}\n{stored.entry.version}".encode()).hexdigest()[:12]


def _is_timed(stored: StoredSuite, builds: dict[str, WeekBuild], tests: int) -> bool:
    """Return whether the durations of a build are told."""
    day = f"day={stored.day.isoformat()}/"
    timed = {name: build.seconds for name, build in builds.items() if build.seconds and name.startswith(day)}
    if sum(timed.values()) + tests <= TIMED_A_DAY:
        return True
    same = f"~{encoded(stored.build.variant)}~{encoded(stored.suite)}.parquet"
    return trigger_of_key(stored.build.revision) in LINE and not any(name.endswith(same) for name in timed)
