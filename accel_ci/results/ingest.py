"""Reports of any kind into the store: read in parallel, put together as one test job, written at once.

Here belongs the way from paths to stored rows. What a report says is `accel_ci.reports`' part, what a row is
`accel_ci.results.rows`'. Nothing is written before every file was read, so a process that is killed leaves what was stored
before. Memory grows with the rows of the job, some 500 bytes each, not with the size of the files.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timezone
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pyarrow as pa

from accel_ci.errors import AccelCiError
from accel_ci.model import Build, Verdict
from accel_ci.progress import Step
from accel_ci.reports.attempt_tables import read_attempts
from accel_ci.reports.group import decisive, order_key
from accel_ci.reports.parse import BEP_FILE, read_file
from accel_ci.reports.report import Report, Status
from accel_ci.reports.warning_codes import doubts, unreadable
from accel_ci.results.columns import conform, constant, kernels, release_memory
from accel_ci.results.rows import REPORT, REPORT_ORDER, from_report
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import StoredSuite

_ALONE_BYTES = 4 << 20
"""Below this a second process costs more than it brings."""

_TASK_FILES, _TASK_BYTES = 64, 8 << 20
_LINES_TASK_FILES, _LINES_TASK_BYTES = 512, 128 << 20
_RUNNERS = b'{"event":'
_OF_ROW = ("classname", "name", "file", "target", "attempt", "outcome", "duration_s", "message", "cached")


@dataclass(frozen=True)
class FileOutcome:
    """The outcome of reading one file; `warnings` are the codes of `accel_ci.reports`."""

    path: Path
    status: Status
    rows: int
    warnings: tuple[str, ...]

    @property
    def reason(self) -> str | None:
        """The reason why the file is not whole, has no rows or claims more than these; None for one that is complete."""
        whole = self.status == "complete" and self.rows and not doubts(self.warnings)
        return None if whole else ", ".join(self.warnings) or self.status


@dataclass(frozen=True)
class IngestReport:
    """The outcome of an ingest. `stored` is None if there was no row, and then nothing was written."""

    files: tuple[FileOutcome, ...]
    rows: int
    counts: dict[Verdict, int]
    stored: StoredSuite | None

    @property
    def troubled(self) -> tuple[FileOutcome, ...]:
        """The files that were not complete or had no rows."""
        return tuple(file for file in self.files if file.reason is not None)

    @property
    def exit_code(self) -> int:
        """0 when every file was complete, 1 when some were not or claim more than they show, 2 when some had no rows."""
        if not self.rows or any(file.status in ("rejected", "empty") or not file.rows for file in decisive(self.files)):
            return 2
        return int(any(file.status == "salvaged" or doubts(file.warnings) for file in self.files))


def ingest(
    paths: Iterable[Path],
    build: Build,
    suite: str,
    day: date,
    store: ResultsStore,
    *,
    step: Step | None = None,
    processes: int | None = None,
) -> IngestReport:
    """Read report files, and folders of them, as the reports of one test job, and store their rows as the suite of a build.

    `day` is the revision's. `step` hears of every file. `processes` is how many read at the same time, by default one per
    core. Raises `AccelCiError` for a path that does not exist.
    """
    files = find_reports(paths)
    if step is not None:
        step.total(len(files))
    reads = list(_told(_read_all(files, processes or os.cpu_count() or 1), step))
    outcomes = tuple(sorted((file for read in reads for file in read.files), key=lambda file: file.path))
    count = sum(file.rows for file in outcomes)
    if not count:
        return IngestReport(outcomes, 0, {}, None)
    stored = store.write_rows(build, day, suite, from_report(build, suite, _in_order(reads)))
    [rollup] = store.rollups([stored])
    return IngestReport(outcomes, count, rollup.origin.counts, stored)


def find_reports(paths: Iterable[Path]) -> list[Path]:
    """The files to read: those named, and all files of the folders named that are not hidden; each once, by path.

    Of a folder with `bep.ndjson` that file alone is named: it refers to what lies below `testlogs/` beside it.
    """
    found: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise AccelCiError(f"{path} does not exist; name a report or a folder of reports")
        found |= set(_files_below(path)) if path.is_dir() else {path}
    return sorted(found)


def _files_below(folder: Path) -> Iterator[Path]:
    if (folder / BEP_FILE).is_file():
        yield folder / BEP_FILE
        return
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            yield from _files_below(path)
        elif not path.name.startswith("."):
            yield path


@dataclass(frozen=True)
class _Read:
    """Files that were read, with their timestamps, and the rows of all of them (columns of `REPORT`), file after file."""

    table: pa.Table
    files: list[FileOutcome]
    timestamps_ns: list[int | None]


def _read_all(files: Sequence[Path], processes: int) -> Iterator[_Read]:
    lines = [file for file in files if _is_runners(file)]
    with ThreadPoolExecutor(processes) as threads:  # DuckDB reads lines without the interpreter's lock
        sizes = list(map(_size, lines))
        even = -(-sum(sizes) // processes) + max(sizes, default=0) // 2
        most = min(max(_TASK_BYTES, even), _LINES_TASK_BYTES)  # a query has its price
        yield from threads.map(_read_lines, _tasks(lines, sizes, _LINES_TASK_FILES, most))
    yield from _read_reports(sorted({*files}.difference(lines)), processes)


def _told(reads: Iterable[_Read], step: Step | None) -> Iterator[_Read]:
    for read in reads:
        yield read
        if step is not None:
            for file in read.files:
                step.advance(f"{file.path.name}: {file.status}" if file.reason else "")


def _read_reports(files: Sequence[Path], processes: int) -> Iterator[_Read]:
    sizes = [_size(file) for file in files]
    tasks = list(_tasks(files, sizes))
    if processes < 2 or len(tasks) < 2 or sum(sizes) < _ALONE_BYTES:
        yield from (_read(task) for task in tasks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(tasks)), mp_context=context, initializer=_end_with_parent) as pool:
        try:
            for future in as_completed([pool.submit(_read, task) for task in tasks]):
                yield future.result()
        except BrokenProcessPool:
            raise AccelCiError("a process that read reports was killed; give it memory, or use fewer processes") from None


def _tasks(
    files: Sequence[Path], sizes: Sequence[int], most_files: int = _TASK_FILES, most_bytes: int = _TASK_BYTES
) -> Iterator[list[Path]]:
    """Cut the files, which have these sizes, into tasks of so many files and bytes."""
    task: list[Path] = []
    weight = 0
    for file, size in zip(files, sizes, strict=True):
        if task and (len(task) >= most_files or weight + size > most_bytes):
            yield task
            task, weight = [], 0
        task.append(file)
        weight += size
    if task:
        yield task


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def _end_with_parent() -> None:
    """End this process when its parent does: a pool's workers wait for ever for work from one that was killed."""
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()


def _read(task: Sequence[Path]) -> _Read:
    tables, outcomes, timestamps = [], [], []
    for path in task:
        report = Report("rejected", {"x_not_a_file"})
        table = REPORT.empty_table()
        if path.is_file():  # a pipe would be waited for
            try:
                report = read_file(path, testlogs=path.parent / "testlogs" if path.name == BEP_FILE else None)
                table = report_table(report)
            except OSError as error:
                report = Report("rejected", {unreadable(error)})
        tables.append(table)
        outcomes.append(FileOutcome(path, report.status, len(table), tuple(sorted(report.warnings))))
        timestamps.append(report.timestamp_ns)
    read = _Read(pa.concat_tables(tables).combine_chunks(), outcomes, timestamps)
    del tables, table, report
    release_memory()
    return read


def _is_runners(path: Path) -> bool:
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(len(_RUNNERS)) == _RUNNERS
    return False


def _read_lines(task: Sequence[Path]) -> _Read:
    """Workers' event lines, in columns from the start: they are the most, and say the test's id themselves."""
    tables, outcomes = [], []
    for path, attempts in zip(task, read_attempts(task), strict=True):
        warnings = {*attempts.warnings, *(() if len(attempts.table) else ("no_test_cases",))}
        tables.append(attempts.table)
        outcomes.append(FileOutcome(path, attempts.status, len(attempts.table), tuple(sorted(warnings))))
    return _Read(pa.concat_tables(tables), outcomes, [None] * len(task))


def report_table(report: Report) -> pa.Table:
    """The rows of a file (columns of `REPORT`), whose lists go. One that does not say when it began began with its file."""
    rows = len(report.columns)
    columns: dict[str, Any] = {name: vars(report.columns).pop(name) for name in _OF_ROW}
    if any(report.columns.properties):  # the runner's lines have them
        said = [dict(properties) for properties in report.columns.properties]
        columns |= {name: [row.get(name) for row in said] for name in ("card", "host", "worker")}
        columns["round"] = [_round(row.get("round", "")) for row in said]
        if any(columns["round"]):
            columns["attempt"] = [0] * rows  # those of the report count through all rounds
        columns["started_at"] = [_moment(row.get("started_at", "")) for row in said]
    arrays = {name: pa.array(columns.pop(name), REPORT.field(name).type) for name in list(columns)}
    table = conform(pa.table(arrays), REPORT)
    if report.timestamp_ns is None:
        return table
    place = REPORT.get_field_index("started_at")
    began = pa.scalar(report.timestamp_ns // 1000, pa.int64()).cast(REPORT.field(place).type)
    return table.set_column(place, REPORT.field(place), kernels.fill_null(table["started_at"], began))


def _round(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def _moment(text: str) -> datetime | None:
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return None


def _in_order(reads: list[_Read]) -> pa.Table:
    """The rows of all files in the order of their files, with the place of the file.

    `reads` is emptied: the tables are to go as soon as there is another form of them.
    """
    timestamps, tables = {}, {}
    for read in reads:
        begin = 0
        for file, time in zip(read.files, read.timestamps_ns, strict=True):
            timestamps[file.path] = time
            tables[file.path] = read.table.slice(begin, file.rows)
            begin += file.rows
    reads.clear()
    order = sorted(timestamps, key=lambda path: order_key(path, timestamps[path]))
    places = [constant(place, len(tables[path]), pa.int32()) for place, path in enumerate(order)]
    rows = pa.concat_tables([tables[path] for path in order], promote_options="default")
    return rows.append_column(REPORT_ORDER, pa.chunked_array(places))
