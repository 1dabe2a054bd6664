"""The runner's event lines as Arrow tables of attempts: the fast way from workers' files to the store.

Here belong columns and no rows: node ids stay whole, so that they match the expected tests. Blocks of lines go to Arrow's
JSON reader; a block that it refuses or reads otherwise than line by line is read again line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from accel_ci.model import OUTCOMES

from .characters import Characters
from .durations import duration_of
from .json_lines import DAMAGE, Object, read_objects
from .report import DEFAULT_LIMITS, Limits, Status

_TEXTS = ("suite", "test", "outcome", "started_at", "message", "output_tail", "card", "host", "worker")
_TYPES: dict[str, pa.DataType] = {**dict.fromkeys(_TEXTS, pa.string()), "round": pa.int64(), "duration_s": pa.float64()}
SCHEMA = pa.schema(_TYPES)
"""The fields of an attempt as the runner writes them; `started_at` is ISO 8601."""

_WITH_EVENT = pa.schema({"event": pa.string(), **_TYPES})
_BLOCK = 1 << 21
_OF_ARROW = pj.ParseOptions(explicit_schema=_WITH_EVENT, unexpected_field_behavior="ignore")
_KNOWN = pa.array(OUTCOMES)
_ATTEMPT = pa.array(["attempt"])
_ROWS = 50_000
_SURROGATE = re.compile("[\ud800-\udfff]")


def attempt_tables(path: Path, warnings: set[str], limits: Limits = DEFAULT_LIMITS) -> Iterator[pa.Table]:
    """Tables of `SCHEMA` with a row per attempt line of a worker's file, in order, with bounded memory.

    Args:
        path: The file, plain or gzip; `OSError` if it cannot be read.
        warnings: Takes the codes of what is found; `status_of` them, at the end, is the file's status.
        limits: What a line may cost.
    """
    with path.open("rb", buffering=0) as stream:
        rest = stream.read(_BLOCK)
        while rest and not rest.startswith(b"\x1f\x8b") and len(rest) <= limits.line + _BLOCK:
            chunk = stream.read(_BLOCK)
            cut = rest.rfind(b"\n") + 1 if chunk else len(rest)
            block, rest = rest[:cut], rest[cut:] + chunk
            table = _by_arrow(block)
            if table is not None:
                yield table
            else:
                yield from _by_line([block], warnings, limits)
        if rest:
            yield from _by_line(chain([rest], iter(lambda: stream.read(_BLOCK), b"")), warnings, limits)


def status_of(warnings: set[str]) -> Status:
    """The status of a file that was read with these warnings."""
    return "salvaged" if warnings & (DAMAGE | {"gzip_corrupt"}) else "complete"


def _by_arrow(block: bytes) -> pa.Table | None:
    """The attempts of a block of whole lines; None if Arrow may not have read what the lines say."""
    lines = block.count(b"\n")
    if not block.endswith(b"\n") or not block.startswith(b"{") or block.count(b"\n{") != lines - 1:  # a blank line, say
        return None
    try:
        events = pj.read_json(cast(IO[bytes], pa.BufferReader(block)), parse_options=_OF_ARROW)
        events.validate(full=True)
    except pa.ArrowInvalid:
        return None
    if events.num_rows != lines:
        return None
    table = events.filter(pc.is_in(events["event"], _ATTEMPT)).drop_columns("event")
    seconds, rounds = table["duration_s"], table["round"]
    sound = (
        all(table[name].null_count == 0 for name in ("suite", "test", "round", "outcome"))
        and pc.all(pc.is_in(table["outcome"], _KNOWN)).as_py() is not False
        and pc.all(pc.and_(pc.greater(rounds, pa.scalar(-1 << 31)), pc.less(rounds, pa.scalar(1 << 31)))).as_py()
        is not False
        and pc.all(pc.and_(pc.is_finite(seconds), pc.greater_equal(seconds, pa.scalar(0.0)))).as_py() is not False
    )
    return table if sound else None


def _by_line(chunks: Iterable[bytes], warnings: set[str], limits: Limits) -> Iterator[pa.Table]:
    characters = Characters(chunks, limits)
    characters.warnings = warnings
    rows = (_row(event, warnings) for event in read_objects(characters, limits) if event.get("event") == "attempt")
    while batch := list(islice(rows, _ROWS)):
        yield pa.Table.from_pylist(batch, schema=SCHEMA)
    if characters.gzip_fault or (characters.gzip_cut and "truncated" not in warnings):
        warnings.add("gzip_corrupt")


def _row(event: Object, warnings: set[str]) -> dict[str, object]:
    """One attempt, with null for what is not of its type."""
    row: dict[str, object] = {}
    for name in SCHEMA.names:
        value = event.get(name)
        row[name] = _SURROGATE.sub("\ufffd", value) if isinstance(value, str) and name in _TEXTS else None
    row["suite"], row["test"] = row["suite"] or "", row["test"] or ""
    if row["outcome"] not in OUTCOMES:
        row["outcome"] = "error"
        warnings.add("x_unknown_outcome")
    number = event.get("round")
    whole = isinstance(number, int) and not isinstance(number, bool) and abs(number) < 1 << 31
    row["round"] = number if whole else 1
    row["duration_s"], warning = duration_of(event.get("duration_s"))
    if warning:
        warnings.add(warning)
    return row
