"""What each test did in one build, one row per test: made from an attempts file alone, and fast to look up and to scan.

A rollup is an Arrow IPC file whose record batches are buckets of the tests' keys, in order: the batch that holds a test
follows from its key and the number of batches, so that a look-up reads a footer and one batch, and a scan only the columns
that it wants. (A Parquet footer alone costs more than the whole look-up.) Its metadata name the version of the attempts file
it was made from; one that names another is stale. Here belongs one rollup; the store decides which are read.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from accel_ci.model import FAILING_OUTCOMES, VERDICTS, Verdict
from accel_ci.results.columns import Column, constant, counted, counts_of, kernels, repeats, schema_of, taken

ROLLUP = schema_of(
    key=pa.uint64(),
    verdict=pa.int8(),
    attempts=pa.int32(),
    failures=pa.int32(),
    duration_s=pa.float64(),
    started_at=pa.timestamp("us", tz="UTC"),
    message=pa.string(),
    signature=pa.string(),
    test=pa.string(),
)
"""`key` is `test_key(test)`, `verdict` an index into `VERDICTS`. `failures` counts failed attempts that were not put down to
the infrastructure, `duration_s` is the median of the attempts that ended by themselves, `started_at` the first attempt's
start; `message` and `signature` are the last failure's, the message cut to `MESSAGE_CHARS`."""

MESSAGE_CHARS = 1000
_BUCKET_ROWS = 2048
# Another number when the columns or what they mean change: rollups of before are then made anew.
_SOURCE, _ORIGIN = b"accel_ci.source.1", b"accel_ci.origin"

# Most tests have one attempt, and grouping a million of them costs seconds: only the others are grouped.
_JUDGE = """
WITH judged AS (
    SELECT *, infra IS NULL AND outcome <> 'not_run' AS own, list_contains($failing, outcome) AS bad,
           CASE WHEN infra IS NULL AND outcome NOT IN ('timeout', 'crashed', 'not_run') THEN duration_s END AS seconds
    FROM attempts
),
several AS (
    SELECT test, min(place) AS place, count(*) AS attempts,
           count(*) FILTER (own AND bad) AS failures, count(*) FILTER (own AND NOT bad) AS good,
           count(infra) AS infra, arg_max(outcome, place) FILTER (own) AS last, median(seconds) AS duration_s,
           min(started_at) AS started_at, arg_max(message, place) FILTER (own AND bad AND message IS NOT NULL) AS message,
           arg_max(signature, place) FILTER (own AND bad AND signature IS NOT NULL) AS signature
    FROM judged WHERE NOT alone GROUP BY test
),
tests AS (
    SELECT test, place, 1 AS attempts, (own AND bad)::INT AS failures, (own AND NOT bad)::INT AS good,
           (infra IS NOT NULL)::INT AS infra, outcome AS last, seconds AS duration_s, started_at,
           CASE WHEN own AND bad THEN message END AS message, CASE WHEN own AND bad THEN signature END AS signature
    FROM judged WHERE alone
    UNION ALL SELECT * FROM several
)
SELECT ('0x' || left(md5(test), 16))::UBIGINT AS key,
       (list_position($verdicts, CASE WHEN failures > 0 AND good > 0 THEN 'flaky' WHEN failures > 0 THEN 'failed'
            WHEN good > 0 THEN last WHEN infra > 0 THEN 'infra' ELSE 'not_run' END) - 1)::TINYINT AS verdict,
       attempts::INT AS attempts, failures::INT AS failures, duration_s, started_at, left(message, $chars) AS message,
       signature, place
FROM tests
"""


@dataclass(frozen=True)
class Origin:
    """Which rows a rollup sums up, and how many tests had which verdict."""

    day: str
    revision: str
    variant: str
    suite: str
    attempts: int
    counts: dict[Verdict, int]


def test_key(test: str) -> int:
    """The 64-bit key of a test's canonical id: the first eight bytes of its MD5.

    Two of a million tests share a key once in thirty million stores; their histories would be told as one.
    """
    return int.from_bytes(hashlib.md5(test.encode(), usedforsecurity=False).digest()[:8], "big")


test_key.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it for its name


def judge_tests(attempts: pa.Table) -> pa.Table:
    """One row per test (columns of `ROLLUP`), in the order of their keys, from the attempts of one build and suite.

    The verdicts are those of `accel_ci.results.verdicts.judge`. The attempts must be sorted by test, round and attempt.
    """
    tests = attempts["test"].combine_chunks()
    same, edge = repeats(tests), constant(False, min(1, len(tests)), pa.bool_())
    alone = kernels.invert(kernels.or_(pa.concat_arrays([edge, same]), pa.concat_arrays([same, edge])))
    slim = attempts.select(["test", "outcome", "infra", "started_at", "duration_s", "message", "signature"])
    slim = slim.append_column("alone", alone).append_column("place", counted(len(tests)))
    bound = {"failing": sorted(FAILING_OUTCOMES), "verdicts": list(VERDICTS), "chars": MESSAGE_CHARS}
    with duckdb.connect() as connection:
        connection.register("attempts", slim)
        rollup = connection.sql(_JUDGE, params=bound).to_arrow_table()
    keys = rollup["key"].combine_chunks()
    order: pa.Array[Any] = kernels.array_sort_indices(keys)
    if kernels.any(repeats(keys.take(order))).as_py():
        order = kernels.sort_indices(rollup, [("key", "ascending"), ("place", "ascending")])
    columns: dict[str, Column] = dict(zip(rollup.column_names, rollup.columns, strict=True))
    del rollup, keys
    table = taken(columns, order)
    return table.append_column("test", tests.take(table["place"].combine_chunks())).select(ROLLUP.names).cast(ROLLUP)


def encode(rollup: pa.Table, source: str, day: str, revision: str, variant: str, suite: str) -> pa.Buffer:
    """A rollup as a file; `source` is the version of the attempts file that it was made from."""
    totals = counts_of(rollup["verdict"])
    counts = {verdict: totals.get(code, 0) for code, verdict in enumerate(VERDICTS)}
    attempts = kernels.sum(rollup["attempts"]).as_py() or 0
    origin = Origin(day, revision, variant, suite, attempts, counts)
    schema = ROLLUP.with_metadata({_SOURCE: source.encode(), _ORIGIN: json.dumps(asdict(origin)).encode()})
    bits = max(0, (len(rollup) // _BUCKET_ROWS).bit_length())
    keys = rollup["key"].combine_chunks()
    bounds = [_first(keys, bucket << (64 - bits)) for bucket in range(1 << bits)] + [len(rollup)]
    whole = pa.RecordBatch.from_arrays([column.combine_chunks() for column in rollup.columns], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        for begin, end in pairwise(bounds):
            writer.write_batch(whole.slice(begin, end - begin))
    return sink.getvalue()


class Rollup:
    """A rollup file that is open for reading."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError` or `pyarrow.ArrowInvalid` when there is no rollup."""
        self._path = path
        self._reader: pa.RecordBatchFileReader | None = _open_to_find(path)
        metadata = self._reader.schema.metadata or {}
        self.source = metadata.get(_SOURCE, b"").decode()
        self._origin = metadata.get(_ORIGIN, b"{}")

    @cached_property
    def origin(self) -> Origin:
        """What the rollup sums up."""
        return Origin(**json.loads(self._origin))

    def find(self, key: int) -> dict[str, Any] | None:
        """The row of a test, without its key and name; None when it was not in the build."""
        reader = self._reader or _open_to_find(self._path)
        bits = reader.num_record_batches.bit_length() - 1
        batch = reader.get_batch(key >> (64 - bits))
        keys = batch.column(0)
        place = _first(keys, key)
        found = place < len(keys) and keys[place].as_py() == key
        return dict(batch.slice(place, 1).drop_columns(["key"]).to_pylist()[0]) if found else None

    def closed(self) -> Rollup:
        """This rollup, with its file closed until it is read: thousands may be held at the same time."""
        self._reader = None
        return self

    def table(self, columns: Sequence[str]) -> pa.Table:
        """All rows, with these columns, in the order of `ROLLUP`."""
        fields = (place for place, name in enumerate(ROLLUP.names) if name in columns)
        return _open(pa.memory_map(str(self._path)), fields).read_all()


def _open_to_find(path: Path) -> pa.RecordBatchFileReader:
    """All columns but the name. Mapping the file would cost more than the three reads of a look-up."""
    return _open(pa.OSFile(str(path), "r"), range(len(ROLLUP) - 1))


def _open(file: pa.NativeFile, fields: Iterable[int]) -> pa.RecordBatchFileReader:
    return pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=list(fields), use_threads=False))


def _first(keys: pa.Array[Any], key: int) -> int:
    """The place of the first of sorted `keys` that is not below `key`."""
    return bisect_left(keys, key, key=lambda scalar: scalar.as_py())
