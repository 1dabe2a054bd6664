"""The runner's event lines as Arrow tables of attempts: the fast path from workers' files to the store.

Here belong columns, not rows: node ids stay whole, so that they match the expected tests. DuckDB's JSON reader takes many
files at a time; a file that it refuses, or with values that the runner does not write, is read line by line. The fields of a
worker's start (`STARTED_FIELDS`) are added to each of its attempts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute

from accel_ci.model import OUTCOMES

from .characters import Characters
from .detect import read_chunks_of
from .json_lines import Object, read_objects
from .report import DEFAULT_LIMITS, Status
from .runner_lines import STARTED_FIELDS, attempt_of
from .warning_codes import WarningCode, salvages, unreadable

_TYPES: dict[str, pa.DataType] = {
    "test": pa.string(), "round": pa.int32(), "outcome": pa.string(), "started_at": pa.timestamp("us", tz="UTC"),
    "duration_s": pa.float64(), "message": pa.string(), "card": pa.string(), "host": pa.string(), "worker": pa.string(),
}  # fmt: skip
SCHEMA = pa.schema(_TYPES)
"""The fields of an attempt. `round` and `started_at` are null where they are missing or do not fit the column."""

_kernels: Any = pyarrow.compute
_FIELDS = dict.fromkeys(["event", *_TYPES], "VARCHAR") | {"round": "BIGINT", "duration_s": "DOUBLE"}
_READ = """
SELECT list_position($paths, filename)::INTEGER - 1 AS place, event = 'worker_started' AS started,
       coalesce(test, '') AS test, try_cast(round AS INTEGER) AS round, outcome,
       try_cast(started_at AS TIMESTAMPTZ) AS started_at, duration_s, message, card, host, worker,
       abs(round) >= 2147483648 OR duration_s < 0 OR NOT isfinite(duration_s) OR length(message) > $text AS odd
FROM read_json($patterns, format = 'newline_delimited', auto_detect = false, columns = $fields, filename = true,
               maximum_object_size = 4194304)
WHERE event IN ('attempt', 'worker_started')
"""
_READ_MOMENTS = "SELECT * REPLACE (try_cast(started_at AS TIMESTAMPTZ) AS started_at) FROM lines"
_ROWS = 50_000
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Attempts:
    """The attempts of one worker's file in the order of its lines (columns of `SCHEMA`), and its warnings."""

    table: pa.Table
    warnings: frozenset[WarningCode] = frozenset()

    @property
    def status(self) -> Status:
        """`salvaged` where lines may be missing, `rejected` when the file could not be read at all."""
        if any(warning.startswith("x_unreadable") for warning in self.warnings):
            return "rejected"
        return "salvaged" if salvages(self.warnings) else "complete"


def read_attempts(paths: Sequence[Path]) -> Iterator[Attempts]:
    """Read the attempts of workers' files, plain or gzip, in order; memory grows with their rows."""
    tables = _read_together(paths)
    if tables is not None:
        yield from map(Attempts, tables)
    elif len(paths) > 1:
        for path in paths:
            yield from read_attempts([path])
    else:
        try:
            yield _read_by_line(paths[0])
        except OSError as error:
            yield Attempts(SCHEMA.empty_table(), frozenset({unreadable(error)}))


def _read_together(paths: Sequence[Path]) -> list[pa.Table] | None:
    """Read a table for each file; None if one of them has to be read line by line."""
    import duckdb  # 20 MB that reports of other kinds do without

    names = [str(path) for path in paths]
    patterns = [re.sub(r"([*?\[])", r"[\1]", name) for name in names]
    bound = {"paths": names, "patterns": patterns, "fields": _FIELDS, "text": DEFAULT_LIMITS.text}
    with duckdb.connect(config={"threads": 1, "autoinstall_known_extensions": False}) as connection:
        try:
            rows = cast(pa.Table, connection.sql(_READ, params=bound).to_arrow_table())
        except (duckdb.Error, OSError):  # gzip too
            return None
    known = _kernels.or_(_kernels.is_in(rows["outcome"], pa.array(OUTCOMES)), rows["started"])
    if _kernels.any(rows["odd"]).as_py() or not _kernels.all(known).as_py():
        return None
    counts = {row["values"]: row["counts"] for row in _kernels.value_counts(rows["place"]).to_pylist()}
    ends = list(accumulate(counts.get(place, 0) for place in range(len(paths))))
    return [_spread(rows.slice(begin, end - begin)) for begin, end in pairwise([0, *ends])]


def _spread(events: pa.Table) -> pa.Table:
    """The attempts among the events of a file, with the fields of their worker's start."""
    places = _kernels.indices_nonzero(events["started"]).to_pylist()
    common: dict[str, Any] = {}
    tables = [SCHEMA.empty_table()]
    for place, end in pairwise([-1, *places, len(events)]):
        if place >= 0:
            common |= {name: events[name][place] for name in STARTED_FIELDS if events[name][place].is_valid}
        run = events.slice(place + 1, end - place - 1)
        columns: dict[str, Any] = {name: run[name] for name in SCHEMA.names}
        columns |= {name: _kernels.fill_null(columns[name], value) for name, value in common.items()}
        tables.append(pa.table(columns).cast(SCHEMA))
    return pa.concat_tables(tables)


def _read_by_line(path: Path) -> Attempts:
    import duckdb

    characters = Characters(read_chunks_of(path), DEFAULT_LIMITS)
    warnings = characters.warnings
    rows = _rows(read_objects(characters, DEFAULT_LIMITS), warnings)
    tables = [_FROM_TEXT.empty_table()]
    while some := list(islice(rows, _ROWS)):
        tables.append(pa.Table.from_pylist(some, schema=_FROM_TEXT))
    if characters.gzip_fault or (characters.gzip_cut and "truncated" not in warnings):
        warnings.add("gzip_corrupt")
    with duckdb.connect(config={"autoinstall_known_extensions": False}) as connection:
        connection.register("lines", pa.concat_tables(tables))
        table = connection.sql(_READ_MOMENTS).to_arrow_table()
    return Attempts(table.cast(SCHEMA), frozenset(warnings))


_FROM_TEXT = SCHEMA.set(SCHEMA.get_field_index("started_at"), pa.field("started_at", pa.string()))


def _rows(events: Iterable[Object], warnings: set[WarningCode]) -> Iterator[dict[str, object]]:
    """The attempts, with null for each value of another type."""
    started: Object = {}
    for event in events:
        if (attempt := attempt_of(event, started, warnings)) is not None:
            texts = {name: _text(attempt.get(name)) for name in _TYPES}
            number = attempt.get("round")
            whole = isinstance(number, int) and not isinstance(number, bool) and abs(number) < 1 << 31
            others = {"round": number if whole else None, "duration_s": attempt["duration_s"]}
            yield {**texts, **others, "test": texts["test"] or ""}


def _text(value: object) -> str | None:
    return _SURROGATE.sub("\ufffd", value) if isinstance(value, str) else None
