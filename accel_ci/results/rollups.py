"""A row for each test of a build: made from an attempts file alone, and fast to look up and to scan.

A rollup is an Arrow IPC file whose record batches are buckets of the tests' keys, in order: the batch that holds a test
follows from its key and the number of batches, so that a look-up reads a footer and one batch, and a scan only the columns
that it wants. (A Parquet footer alone costs more than the whole look-up.) Its metadata name the version of the attempts file
it was made from; one that names another is stale. Here belong one rollup and the verdict rule; the store decides which are
read.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from accel_ci.model import FAILING_OUTCOMES, OUTCOMES, VERDICTS, Outcome, Verdict
from accel_ci.results.columns import Column, conform, counted, counts_of, database, kernels, one_chunk, repeats, schema_of
from accel_ci.results.threads import order_of, prefetch

ROLLUP = schema_of(
    key=pa.uint64(), verdict=pa.int8(), attempts=pa.int32(), failures=pa.int32(), duration_s=pa.float64(),
    started_at=pa.timestamp("us", tz="UTC"), message=pa.string(), signature=pa.string(),
    cached=pa.bool_(), place=pa.int32(), passes=pa.int32(),
)  # fmt: skip
"""`key` is `test_key(test)`, `verdict` an index into `VERDICTS`. `failures` counts failed attempts that were not lost to
the infrastructure, and `passes` those that passed, expectedly or not. `duration_s` is the median of the attempts that ended
by themselves, `started_at` the first attempt's start; `message` and `signature` are the last failure's, the message cut to
`MESSAGE_CHARS`. `cached` says that no attempt was made in this build, so that it says nothing of how often the test fails.
`place` is the number of the test's first row in the attempts file, which alone has the names: they are half of all that
there is."""

CODES: dict[str, int] = {verdict: code for code, verdict in enumerate(VERDICTS)}
"""A verdict's place in `VERDICTS`: how it is stored."""

MESSAGE_CHARS = 1000
_BUCKET_ROWS = 2048
# Another number when the columns or what they mean change: rollups of before are then made anew.
_SOURCE, _ORIGIN = b"accel_ci.source.6", b"accel_ci.origin"

PROOFS: tuple[Outcome, ...] = ("passed", "xpassed", "xfailed", "skipped")
"""The outcomes that are no failure, by what they prove of a test. A skip proves nothing."""

_PROVED: pa.Array[Any] = pa.array([*(CODES[outcome] for outcome in PROOFS), CODES["not_run"]], pa.int8())
_PASSES: pa.Array[Any] = pa.array(["passed", "xpassed"])
_SKIP = PROOFS.index("skipped")
_UNTIMED = ("timeout", "crashed", "not_run")
_SEVERAL = """
WITH judged AS (
    SELECT *, infra IS NULL AND outcome <> 'not_run' AS own, list_contains($failing, outcome) AS bad,
           coalesce(list_position($proofs, outcome), 1 + len($proofs)) - 1 AS proof,
           CASE WHEN infra IS NULL AND NOT coalesce(cached, false) AND NOT list_contains($untimed, outcome)
                THEN duration_s END AS seconds
    FROM attempts
),
tests AS (
    SELECT any_value(key) AS key, min(place) AS first, count(*) AS attempts,
           count(*) FILTER (own AND bad) AS failures, count(*) FILTER (own AND outcome IN ('passed', 'xpassed')) AS passes,
           min(proof) FILTER (own) AS proof,
           count(infra) AS infra, median(seconds) AS duration_s,
           min(started_at) AS started_at, bool_and(coalesce(cached, false)) AS cached,
           arg_max(message, place) FILTER (own AND bad AND message IS NOT NULL) AS message,
           arg_max(signature, place) FILTER (own AND bad AND signature IS NOT NULL) AS signature
    FROM judged GROUP BY test
)
SELECT coalesce(proof, len($proofs)) AS proof, infra > 0 AS infra, attempts, failures, passes, duration_s, started_at,
       left(message, $chars) AS message, signature, cached, key, first AS place
FROM tests
"""


@dataclass(frozen=True)
class Origin:
    """The rows that a rollup sums up, and its tests counted by verdict."""

    day: str
    revision: str
    variant: str
    suite: str
    attempts: int
    counts: dict[Verdict, int]


def test_key(test: str) -> int:
    """The 64-bit key of a test's canonical id (XXH3).

    Two of a million tests share a key once in thirty million stores; their histories would be told as one.
    """
    return xxh3_64_intdigest(test.encode())


test_key.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it for its name


def judge_tests(attempts: pa.Table, first_row: int = 0) -> pa.Table:
    """One row per test (columns of `ROLLUP`), in no order, from attempts of one build and suite.

    The attempts must be sorted by test, round and attempt, and be all that there are of their tests; `first_row` is the
    number of the first in the attempts file.
    """
    tests = one_chunk(attempts["test"])
    same, edge = repeats(tests), pa.array([False] * min(1, len(tests)), pa.bool_())
    several = kernels.or_(pa.concat_arrays([edge, same]), pa.concat_arrays([same, edge]))
    keys = map(cast(Any, xxh3_64_intdigest), tests.cast(pa.binary()).to_pylist())
    slim = attempts.select(["outcome", "infra", "started_at", "duration_s", "message", "signature", "cached"])
    slim = slim.append_column("key", pa.array(list(keys), pa.uint64()))
    slim = slim.append_column("place", counted(len(tests), first_row))
    if not kernels.any(several).as_py():
        return _judge_alone(slim)
    again = slim.append_column("test", tests).filter(several)  # few: to group all would cost more than all else
    return pa.concat_tables([_judge_alone(slim.filter(kernels.invert(several))), _judge_several(again)])


def _judge_alone(attempts: pa.Table) -> pa.Table:
    """The tests that have one attempt."""
    outcomes = kernels.index_in(attempts["outcome"], pa.array(OUTCOMES))
    infra = kernels.is_valid(attempts["infra"])
    own = kernels.and_not(kernels.not_equal(attempts["outcome"], "not_run"), infra)
    bad = kernels.and_(_among(FAILING_OUTCOMES).take(outcomes), own)
    proofs = kernels.fill_null(kernels.index_in(attempts["outcome"], pa.array(PROOFS)), len(PROOFS))
    cached = kernels.fill_null(attempts["cached"], False)
    untimed = kernels.or_(kernels.or_(_among(_UNTIMED).take(outcomes), infra), cached)
    columns = {
        "verdict": _verdict_codes(bad, False, kernels.if_else(own, proofs, len(PROOFS)), infra),
        "attempts": pa.repeat(1, len(attempts)),
        "failures": bad,
        "duration_s": kernels.if_else(untimed, None, attempts["duration_s"]),
        "started_at": attempts["started_at"],
        "message": kernels.utf8_slice_codeunits(kernels.if_else(bad, attempts["message"], None), 0, MESSAGE_CHARS),
        "signature": kernels.if_else(bad, attempts["signature"], None),
        "cached": cached,
        "key": attempts["key"],
        "place": attempts["place"],
        "passes": kernels.and_(own, kernels.is_in(attempts["outcome"], _PASSES)),
    }
    return conform(pa.table(columns), ROLLUP)


def _among(some: Collection[str]) -> pa.Array[Any]:
    """Of each outcome whether it is among some."""
    return pa.array([outcome in some for outcome in OUTCOMES])


def _judge_several(attempts: pa.Table) -> pa.Table:
    """The tests that have several attempts; `place` is their order."""
    bound = {"failing": sorted(FAILING_OUTCOMES), "proofs": list(PROOFS), "untimed": _UNTIMED, "chars": MESSAGE_CHARS}
    with database(attempts=attempts) as connection:
        tests = connection.sql(_SEVERAL, params=bound).to_arrow_table()
    cleared = kernels.greater_equal(tests["passes"], tests["failures"])
    codes = _verdict_codes(kernels.greater(tests["failures"], 0), cleared, tests["proof"], tests["infra"])
    return conform(tests.append_column("verdict", codes), ROLLUP)


def _verdict_codes(failed: Column, cleared: Column | bool, proof: Column, infra: Column) -> Column:
    """The verdict rule: what all attempts of each test in one build amount to, as codes.

    Failures whose cause is the infrastructure do not count. A test that failed is `flaky` if it passed as often in the same
    build, expectedly or not, and `failed` otherwise: a skip or an expected failure is no pass. A test that did not fail has
    the outcome that proves most (`PROOFS`), whichever came last. When no attempt ran to an end, the verdict is `infra` if
    one was lost to the infrastructure, else `skipped` or `not_run`.

    Args:
        failed: An attempt failed, and not by the infrastructure.
        cleared: As many attempts passed as failed.
        proof: The place in `PROOFS` of the attempt that proves most, among those that the infrastructure did not lose; the
            number of `PROOFS` where there is none.
        infra: An attempt was lost to the infrastructure.
    """
    unproved = kernels.and_(infra, kernels.greater_equal(proof, _SKIP))
    ended = kernels.if_else(unproved, CODES["infra"], _PROVED.take(proof))
    found: Column = kernels.if_else(failed, kernels.if_else(cleared, CODES["flaky"], CODES["failed"]), ended)
    return found


def named(judged: pa.Table, tests: Column) -> pa.Table:
    """Judged tests with their ids as a further column `test`; `tests` are those of all attempts, row by row."""
    rows = judged.sort_by("place")
    return rows.append_column("test", one_chunk(tests).take(one_chunk(rows["place"])))


def encode(judged: pa.Table, source: str, day: str, revision: str, variant: str, suite: str) -> pa.Buffer:
    """Judged tests as a file; `source` is the version of the attempts file that they were judged from."""
    totals = counts_of(judged["verdict"])
    counts = {verdict: totals.get(CODES[verdict], 0) for verdict in VERDICTS}
    attempts = kernels.sum(judged["attempts"]).as_py() or 0
    origin = Origin(day, revision, variant, suite, attempts, counts)
    schema = ROLLUP.with_metadata({_SOURCE: source.encode(), _ORIGIN: json.dumps(asdict(origin)).encode()})
    keys = one_chunk(judged["key"])
    order = order_of(keys)
    keys = keys.take(order)
    if kernels.any(repeats(keys)).as_py():
        order = kernels.sort_indices(judged, [("key", "ascending"), ("place", "ascending")])
    bits = max(0, (len(keys) // _BUCKET_ROWS).bit_length())
    bounds = [_first(keys, bucket << (64 - bits)) for bucket in range(1 << bits)] + [len(keys)]
    columns = list(prefetch(lambda name: one_chunk(judged[name]).take(order), ROLLUP.names))
    whole = pa.RecordBatch.from_arrays(columns, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)) as writer:
        for begin, end in pairwise(bounds):
            writer.write_batch(whole.slice(begin, end - begin))
    return sink.getvalue()


class Rollup:
    """A rollup file that is open for reading."""

    def __init__(self, path: Path, read_tests: Callable[[], Column]) -> None:
        """`read_tests` reads the ids of the attempts, row by row. Raises `OSError`, `pyarrow.ArrowInvalid`: no rollup."""
        self._path = path
        self.read_tests = read_tests
        self._reader: pa.RecordBatchFileReader | None = _open(pa.OSFile(str(path), "r"))
        metadata = self._reader.schema.metadata or {}
        self.source = metadata.get(_SOURCE, b"").decode()
        self._origin = metadata.get(_ORIGIN, b"{}")

    @cached_property
    def origin(self) -> Origin:
        """The rows that the rollup sums up."""
        return Origin(**json.loads(self._origin))

    def find(self, key: int) -> dict[str, Any] | None:
        """The row of a test, without its key, place and passes; None when it was not in the build."""
        reader = self._reader or _open(
            pa.OSFile(str(self._path), "r")
        )  # mapping it would cost more than a look-up's three reads
        bits = reader.num_record_batches.bit_length() - 1
        batch = reader.get_batch(key >> (64 - bits))
        keys = batch.column(0)
        place = _first(keys, key)
        found = place < len(keys) and keys[place].as_py() == key
        return dict(batch.slice(place, 1).drop_columns(["key", "place", "passes"]).to_pylist()[0]) if found else None

    def closed(self) -> Rollup:
        """This rollup, with its file closed until it is read: thousands may be held at the same time."""
        self._reader = None
        return self

    def table(self, columns: Sequence[str]) -> pa.Table:
        """All rows, with these columns, in the order of `ROLLUP`."""
        fields = (place for place, name in enumerate(ROLLUP.names) if name in columns)
        return _open(pa.memory_map(str(self._path)), fields).read_all()

    def tests(self, places: Column) -> pa.Array[Any]:
        """The ids of the tests at some places."""
        return one_chunk(self.read_tests()).take(one_chunk(places))


def _open(file: pa.NativeFile, fields: Iterable[int] = range(len(ROLLUP))) -> pa.RecordBatchFileReader:
    return pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=list(fields), use_threads=False))


def _first(keys: pa.Array[Any], key: int) -> int:
    """The place of the first of sorted `keys` that is not below `key`."""
    return bisect_left(keys, key, key=lambda scalar: scalar.as_py())
