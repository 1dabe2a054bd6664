"""The store of results: the rows of jobs as Parquet files, in a folder or a bucket.

    day=YYYY-MM-DD/<level>-<digest>.parquet    rows that were written on that day (UTC)

A file is written whole or not at all, has the digest of its content as its name, and never changes: the same rows again
are the same file, and several servers may add at a time. Once a day has `MERGED_AT` files of a level, they become one of the
next level; `tidy` makes one file of each day that is over. The merged file is there before the others go, so that a writer
which is killed between leaves rows twice, and readers count each once.

Here belong writing, reading and merging; judging the rows does not.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from accel_ci.relay.rows import JobRow, category_of
from accel_ci.results.columns import conform, database, kernels
from accel_ci.storage.object_store import Entry, FolderStore, ObjectStore

MERGED_AT = 16
"""The number of files of a level and a day that become one."""

_WHOLE_DAY = 9
"""The level of the file that has all of a day."""

_LOG = logging.getLogger(__name__)
_LARGEST = 2**63 - 1
_JOB = ("delivery_id", "repository", "run_id", "run_attempt", "job_name")


def _column(hint: Any) -> pa.DataType:
    parts = set(getattr(hint, "__args__", (hint,)))
    if int in parts:
        return pa.int64()
    return pa.float64() if float in parts else pa.bool_() if hint is bool else pa.string()


COLUMNS = pa.schema([(each.name, _column(get_type_hints(JobRow)[each.name])) for each in fields(JobRow)])
"""The columns are the fields of `JobRow`."""


class ResultsStore:
    """The rows at a place: a local folder, or a bucket, which servers on several machines share."""

    def __init__(self, place: Path | ObjectStore) -> None:
        self._objects: ObjectStore = FolderStore(place) if isinstance(place, Path) else place

    def add(self, rows: Sequence[JobRow]) -> None:
        """Add rows; they are on the disk afterwards. One that is there already changes nothing.

        Of several rows of a job with the same status, the one written last (`at`) counts. Raises `AccelCiError` if the place
        cannot be written.
        """
        days: dict[date, list[JobRow]] = {}
        for row in rows:
            days.setdefault(_day(row.at), []).append(row)
        for day, of_day in days.items():
            self._put(day, 0, _table(of_day))
            self._merge_levels(day)

    def rows(
        self,
        since: float,
        until: float,
        repository: str | None = None,
        pull_request: int | Collection[int] | None = None,
        events: Collection[str] | None = None,
        *,
        with_details: bool = True,
        most: int | None = None,
    ) -> list[JobRow]:
        """Return the newest row of each job, of those written from `since` until before `until`, the newest job first.

        A `completed` row is newer than an `in_progress` one, whenever it was written. Times are seconds of Unix time.
        Without details, which may be long, `failed_tests` is empty, and `triage_verdict` has its category alone. `most` is
        the number of rows at most.
        """
        at: Any = kernels.field("at")
        wanted = (at >= since) & (at < until)
        if repository is not None:
            wanted &= kernels.utf8_lower(kernels.field("repository")) == repository.lower()
        if pull_request is not None:
            numbers = [pull_request] if isinstance(pull_request, int) else list(pull_request)
            wanted &= kernels.field("pull_request").isin(numbers)
        if events is not None:
            wanted &= kernels.field("event").isin(list(events))
        names = COLUMNS.names if with_details else [name for name in COLUMNS.names if name != "failed_tests"]
        found = _last_of_each(self._read(_day(since), _day(until), names, wanted, with_details), _JOB)
        ordered = found.sort_by([("at", "descending")])[:most]
        return [JobRow(**{"failed_tests": "", **row}) for row in ordered.to_pylist()]

    def version(self, since: float, until: float) -> str:
        """Return a text that changes when rows of these days are added."""
        names = [entry.name for entry in self._list(_day(since), _day(until))]
        return hashlib.sha256("\n".join(names).encode()).hexdigest()

    def tidy(self, now: float, keep_days: int) -> None:
        """Make one file of each day that is over, and delete days that are older than `keep_days`."""
        today = _day(now)
        by_day: dict[str, list[Entry]] = {}
        for entry in self._list(date.min, today - timedelta(days=2)):  # rows of yesterday may still be under way
            by_day.setdefault(entry.name.partition("/")[0].removeprefix("day="), []).append(entry)
        for name, entries in by_day.items():
            day = date.fromisoformat(name)
            if (today - day).days > keep_days:
                for entry in entries:
                    self._objects.delete(entry.name)
            elif len(entries) > 1:
                self._merge(day, entries, _WHOLE_DAY)

    def _merge_levels(self, day: date) -> None:
        for level in range(_WHOLE_DAY - 1):
            entries = [entry for entry in self._list(day, day) if entry.name.partition("/")[2].startswith(f"{level}-")]
            if len(entries) < MERGED_AT:
                return
            self._merge(day, entries, level + 1)

    def _merge(self, day: date, entries: Sequence[Entry], level: int) -> None:
        tables = {entry.name: table for entry in entries if (table := self._read_file(entry)) is not None}
        if len(tables) < 2:
            return
        merged = self._put(day, level, _last_of_each(pa.concat_tables(tables.values()), (*_JOB, "status")))
        for name in tables:
            if name != merged.name:
                self._objects.delete(name)

    def _read(self, first: date, last: date, names: Sequence[str], wanted: Any, whole: bool) -> pa.Table:
        """The rows of these days, some of them perhaps twice.

        While it reads, files are merged: their rows are then in a file that is new. A new file of level 0 has nothing that
        was there before.
        """
        schema = pa.schema([COLUMNS.field(name) for name in names])
        tables, seen, entries = [schema.empty_table()], set[str](), self._list(first, last)
        while entries:
            for entry in entries:
                seen.add(entry.name)
                if (table := self._read_file(entry, schema, wanted)) is not None:
                    tables.append(table if whole else _with_categories_alone(table))
            entries = [
                entry
                for entry in self._list(first, last)
                if entry.name not in seen and not entry.name.partition("/")[2].startswith("0-")
            ]
        return pa.concat_tables(tables)

    def _read_file(self, entry: Entry, schema: pa.Schema = COLUMNS, wanted: Any = None) -> pa.Table | None:
        """The rows of a file; None if it is gone, or damaged, which is logged."""
        try:
            with self._objects.fetch(entry).open("rb") as file:
                return conform(pq.read_table(file, columns=list(schema.names), filters=wanted), schema)
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            _LOG.warning("the results in %s cannot be read, and are passed over: %s", entry.name, error)
            return None

    def _list(self, first: date, last: date) -> list[Entry]:
        found = self._objects.list("", f"day={first.isoformat()}", f"day={last.isoformat()}")
        return [entry for entry in found if entry.name.endswith(".parquet")]

    def _put(self, day: date, level: int, table: pa.Table) -> Entry:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        content = sink.getvalue()
        digest = hashlib.sha256(content).hexdigest()[:32]
        return self._objects.put(f"day={day.isoformat()}/{level}-{digest}.parquet", content)


def _day(at: float) -> date:
    return datetime.fromtimestamp(at, timezone.utc).date()


def _table(rows: Iterable[JobRow]) -> pa.Table:
    ordered = sorted(map(_storable, map(asdict, rows)), key=repr)
    return pa.Table.from_pylist(ordered, schema=COLUMNS)


def _storable(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what Parquet cannot hold: halves of characters, and numbers beyond 64 bits."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, str):
            found[name] = value.encode("utf-8", "backslashreplace").decode()
        elif isinstance(value, int) and not isinstance(value, bool):
            found[name] = max(-_LARGEST, min(value, _LARGEST))
        else:
            found[name] = value
    return found


def _with_categories_alone(rows: pa.Table) -> pa.Table:
    name = "triage_verdict"
    short = [json.dumps({"category": category_of(text)}) if text else "" for text in rows[name].to_pylist()]
    return rows.set_column(rows.column_names.index(name), COLUMNS.field(name), pa.array(short, pa.string()))


def _last_of_each(rows: pa.Table, identity: Sequence[str]) -> pa.Table:
    """The last row of each identity; of rows of the same time, the same one wherever they are read."""
    every = ", ".join(f'"{name}"' for name in rows.column_names)
    question = (
        f"SELECT * FROM stored QUALIFY row_number() OVER (PARTITION BY {', '.join(identity)} "  # noqa: S608
        f"ORDER BY status = 'completed' DESC, \"at\" DESC, {every}) = 1"
    )
    with database(stored=rows) as connection:
        found: pa.Table = connection.sql(question).to_arrow_table().cast(rows.schema)
        return found
