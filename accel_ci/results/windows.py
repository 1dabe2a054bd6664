"""Sum the results of tests over a window of days, with a running sum whose cost depends only on new rollups.

Only the sums belong here: `accel_ci.results.store` chooses the rollups of a window, and `accel_ci.quality.flakiness`
interprets the rates. All rollups of one call belong to one variant and suite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, cast

import pyarrow as pa

from accel_ci.model import VERDICTS
from accel_ci.results.columns import constant, database, in_order, kernels, one_chunk, schema_of
from accel_ci.results.rollups import ROLLUP, Rollup

SUMS = schema_of(
    key=pa.uint64(),
    builds=pa.int32(),
    failed=pa.int32(),
    flaky=pa.int32(),
    last_day=pa.date32(),
    last_at=pa.timestamp("us", tz="UTC"),
    message=pa.string(),
    test=pa.string(),
)
"""A row per test that ran: the number of its builds, of those in which it failed, and of those in which it was flaky; then
the day, start and message of the last build in which it failed or was flaky. `test` is set for tests that failed or were
flaky. Cached results do not count."""

_RAN = [code for code, verdict in enumerate(VERDICTS) if verdict not in ("infra", "not_run")]
_FAILED, _FLAKY = VERDICTS.index("failed"), VERDICTS.index("flaky")
_STREAM = pa.schema([SUMS.field(name) for name in ("key", "builds", "failed", "flaky")])
_FAILURES = pa.schema([SUMS.field(name) for name in ("key", "last_day", "last_at", "message")])


def add_up(before: pa.Table | None, added: Sequence[Rollup], expired: Sequence[Rollup]) -> pa.Table:
    """The sums (columns of `SUMS`, by key) of `before`, plus the `added` rollups and minus the `expired` ones in it."""
    failures: list[pa.Table] = []

    def stream() -> Iterator[pa.RecordBatch]:
        if before is not None:
            yield from before.select(_STREAM.names).to_batches()
            failures.append(before.filter(kernels.is_valid(before["last_day"])).select(_FAILURES.names).cast(_FAILURES))
        for rollups, sign in ((added, 1), (expired, -1)):
            for rollup in rollups:
                rows = rollup.table(["key", "verdict", "started_at", "message", "cached"])
                yield from _signed(rows, sign).to_batches(max_chunksize=1 << 17)
                if sign > 0:
                    bad = rows.filter(
                        kernels.and_not(
                            kernels.is_in(rows["verdict"], pa.array([_FAILED, _FLAKY], pa.int8())), rows["cached"]
                        )
                    )
                    day = constant(_day(rollup), len(bad), pa.date32())
                    columns: Any = [bad["key"], day, bad["started_at"], bad["message"]]
                    failures.append(pa.Table.from_arrays(columns, schema=_FAILURES))

    with database(stream=pa.RecordBatchReader.from_batches(_STREAM, stream())) as connection:
        sums = connection.sql(
            "SELECT key, sum(builds)::INT AS builds, sum(failed)::INT AS failed, sum(flaky)::INT AS flaky "
            "FROM stream GROUP BY key HAVING sum(builds) > 0"
        ).to_arrow_table()
        connection.unregister("stream")
        bad = sums.filter(kernels.greater(kernels.add(sums["failed"], sums["flaky"]), 0))["key"]
        connection.register("sums", sums)
        connection.register("failures", pa.concat_tables(failures) if failures else _FAILURES.empty_table())
        connection.register("names", _known_names(before, added, bad.combine_chunks()))
        table = connection.sql(
            """
            WITH placed AS (SELECT *, (last_day, coalesce(last_at, last_day)) AS place FROM failures),
            last AS (
                SELECT key, max(last_day) AS last_day, max_by(last_at, place) AS last_at,
                       max_by(message, place) FILTER (message IS NOT NULL) AS message
                FROM placed GROUP BY key
            )
            SELECT key, builds, failed, flaky, last_day, last_at, message, test
            FROM sums LEFT JOIN (names LEFT JOIN last USING (key)) USING (key)
            """
        ).to_arrow_table()
    return in_order(table.cast(SUMS), "key")


def medians(rollups: Sequence[Rollup]) -> pa.Table:
    """For each key, the median duration of the test over the builds, in seconds (null if it never ended by itself)."""
    schema = pa.schema([ROLLUP.field(name) for name in ("key", "duration_s")])
    batches = (batch for rollup in rollups for batch in _slim(rollup, schema).to_batches(max_chunksize=1 << 17))
    with database(stream=pa.RecordBatchReader.from_batches(schema, batches)) as connection:
        question = "SELECT key, median(duration_s) AS median_s FROM stream GROUP BY key"
        return cast(pa.Table, connection.sql(question).to_arrow_table())


def names(rollups: Sequence[Rollup], keys: pa.Array[Any]) -> pa.Table:
    """The tests of some keys (columns `key` and `test`), each from the first of `rollups` that has it."""
    found = [pa.schema([SUMS.field(name) for name in ("key", "test")]).empty_table()]
    for rollup in rollups:
        if not len(keys):
            break
        here = kernels.is_in(rollup.table(["key"])["key"], keys)
        if kernels.any(here).as_py():
            rows = rollup.table(["key", "place"]).filter(here)
            found.append(pa.table({"key": rows["key"], "test": rollup.tests(rows["place"])}))
            keys = keys.filter(kernels.invert(kernels.is_in(keys, one_chunk(rows["key"]))))
    return pa.concat_tables(found)


def _known_names(before: pa.Table | None, rollups: Sequence[Rollup], keys: pa.Array[Any]) -> pa.Table:
    known = SUMS.empty_table() if before is None else before.filter(kernels.is_in(before["key"], keys))
    known = known.filter(kernels.is_valid(known["test"])).select(["key", "test"]).replace_schema_metadata()
    missing = keys.filter(kernels.invert(kernels.is_in(keys, known["key"].combine_chunks())))
    newest = sorted(rollups, key=_day, reverse=True)
    return pa.concat_tables([known, names(newest, missing)])


def _signed(rows: pa.Table, sign: int) -> pa.Table:
    verdicts, weight = rows["verdict"], pa.scalar(sign, pa.int32())
    ran = kernels.is_in(verdicts, pa.array(_RAN, pa.int8()))
    kinds = (ran, kernels.equal(verdicts, _FAILED), kernels.equal(verdicts, _FLAKY))
    masks = [kernels.and_not(kind, rows["cached"]) for kind in kinds]
    columns = [kernels.multiply(mask.cast(pa.int32()), weight) for mask in masks]
    return pa.Table.from_arrays([rows["key"], *columns], schema=_STREAM)


def _slim(rollup: Rollup, schema: pa.Schema) -> pa.Table:
    return rollup.table(schema.names).replace_schema_metadata()


def _day(rollup: Rollup) -> date:
    return date.fromisoformat(rollup.origin.day)
