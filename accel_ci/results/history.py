"""Results of tests over a window of days: medians of durations, and sums whose cost depends only on new builds.

Sums of earlier calls are kept in the store (`windows/<days>/<variant>~<suite>.arrow`) and brought up to date. All rollups
of one call of `add_up` or `names` belong to one variant and suite. `accel_ci.quality.flakiness` interprets the
rates.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from functools import cache
from typing import Any

import pyarrow as pa

from accel_ci.errors import DamagedError
from accel_ci.model import CONFIRM, VERDICTS, Build, trigger_of_key
from accel_ci.results.columns import constant, database, in_order, kernels, one_chunk, pairs, schema_of
from accel_ci.results.kept_tables import keep_table, read_kept_table
from accel_ci.results.rollups import ROLLUP, Rollup
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import StoredSuite, ask_again, encoded, parse_entry

_LOG = logging.getLogger(__name__)

SUMS = schema_of(
    key=pa.uint64(), builds=pa.int32(), failed=pa.int32(), flaky=pa.int32(),
    last_day=pa.date32(), last_at=pa.timestamp("us", tz="UTC"), message=pa.string(), test=pa.string(),
)  # fmt: skip
"""A row per test that ran: the number of builds that ran it (a skip is no run), of those in which it failed, and of those in
which it was flaky; then the day, start and message of the last build in which it failed or was flaky. `test` is set for
tests that failed or were flaky. Cached results do not count."""

_RAN = [code for code, verdict in enumerate(VERDICTS) if verdict not in ("skipped", "infra", "not_run")]
_FAILED, _FLAKY = VERDICTS.index("failed"), VERDICTS.index("flaky")
_STREAM = pa.schema([SUMS.field(name) for name in ("key", "builds", "failed", "flaky")])
_FAILURES = pa.schema([SUMS.field(name) for name in ("key", "last_day", "last_at", "message")])
_BATCH_ROWS = 1 << 17
_LAYOUT = b"accel_ci.covers.4"  # another number when `SUMS` or its meaning changes


@ask_again
def median_durations(
    store: ResultsStore, variant: str, today: date, window_days: int = 30, *, limit_s: float = math.inf
) -> dict[tuple[str, str], float]:
    """The median seconds of each (suite, test) of a variant over its builds of the window.

    A build counts with the median of the attempts that ended by themselves and were not lost to the infrastructure. More
    than the limit of a test, or less than nothing, was not measured but read from a clock that was turned: it is left out.
    """
    schema = pa.schema([ROLLUP.field(name) for name in ("key", "duration_s")])
    question = "SELECT key, median(duration_s) AS median_s FROM stream WHERE duration_s BETWEEN 0 AND $limit GROUP BY key"
    found: dict[tuple[str, str], float] = {}
    for (_, suite), suites in _by_suite(store, today, window_days, variant).items():
        rollups = _sound_rollups(store, suites)
        tables = (rollup.table(schema.names).replace_schema_metadata() for rollup in rollups)
        batches = (batch for table in tables for batch in table.to_batches(max_chunksize=_BATCH_ROWS))
        with database(stream=pa.RecordBatchReader.from_batches(schema, batches)) as connection:
            medians = connection.sql(question, params={"limit": limit_s}).to_arrow_table()
        tests = dict(pairs(names(rollups[::-1], medians["key"].combine_chunks()), "key", "test"))
        found |= {(suite, tests[key]): seconds for key, seconds in pairs(medians, "key", "median_s")}
    return found


def known_durations(
    store: ResultsStore, is_trusted: Callable[[Build], bool], build: Build, today: date, *, limit_s: float = math.inf
) -> dict[tuple[str, str], float]:
    """The median seconds of each (suite, test) that a build may rely on (see `median_durations`).

    They are those of trusted builds. Other builds also have those of their kind, for tests that no trusted one has run.
    """
    is_trusted = cache(is_trusted)
    trusted = median_durations(store.of_builds(is_trusted), build.variant, today, limit_s=limit_s)
    if is_trusted(build):
        return trusted
    others = store.of_builds(lambda other: not is_trusted(other))
    return median_durations(others, build.variant, today, limit_s=limit_s) | trusted


@ask_again
def window_sums(store: ResultsStore, today: date, window_days: int) -> dict[tuple[str, str], pa.Table]:
    """The sums (columns of `SUMS`) over a window of each variant and suite.

    Builds that run failures again do not count: they are no sample of the tests. The cost is that of the builds which are
    new and of those which left the window since the last call.
    """
    groups = {
        group: [stored for stored in suites if trigger_of_key(stored.build.revision) != CONFIRM]
        for group, suites in _by_suite(store, today, window_days).items()
    }
    return {group: _sums(store, *group, suites, window_days) for group, suites in groups.items() if suites}


def _sound_rollups(store: ResultsStore, suites: Sequence[StoredSuite]) -> list[Rollup]:
    return [rollup for _, rollup in store.open_rollups(suites)]


def _by_suite(
    store: ResultsStore, today: date, window_days: int, variant: str | None = None
) -> dict[tuple[str, str], list[StoredSuite]]:
    groups: defaultdict[tuple[str, str], list[StoredSuite]] = defaultdict(list)
    for stored in store.suites(today - timedelta(days=window_days), today, variant=variant):
        groups[stored.build.variant, stored.suite].append(stored)
    return dict(sorted(groups.items()))


def _sums(store: ResultsStore, variant: str, suite: str, suites: Sequence[StoredSuite], window_days: int) -> pa.Table:
    """The window's sums: those that are kept, with what is new added and what has left taken away."""
    name = f"windows/{window_days}/{encoded(variant)}~{encoded(suite)}.arrow"
    covers = {stored.entry.name: stored.entry.version for stored in suites}
    before, kept = read_kept_table(store.objects, name, _LAYOUT) or (None, dict[str, str]())
    if before is not None and kept == covers:
        return before
    added = [stored for stored in suites if kept.get(stored.entry.name) != stored.entry.version]
    expired = [_unchanged(store, name, version) for name, version in kept.items() if covers.get(name) != version]
    older = max(covers) < max(kept, default="")  # a question about the past
    if before is None or older or None in expired or len(added) + len(expired) > len(suites):
        before, added, expired = None, list(suites), []
    gone = [stored for stored in expired if stored is not None]
    sums = add_up(before, _sound_rollups(store, added), _sound_rollups(store, gone))
    if not older:
        keep_table(store.objects, name, _LAYOUT, sums, covers)
    return sums


def _unchanged(store: ResultsStore, name: str, version: str) -> StoredSuite | None:
    """The suite of that name, None when its content is another or it is gone."""
    entry = store.objects.find(name)
    return parse_entry(entry) if entry is not None and entry.version == version else None


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
                yield from _signed(rows, sign).to_batches(max_chunksize=_BATCH_ROWS)
                if sign > 0:
                    is_bad = kernels.is_in(rows["verdict"], pa.array([_FAILED, _FLAKY], pa.int8()))
                    bad = rows.filter(kernels.and_not(is_bad, rows["cached"]))
                    day = constant(date.fromisoformat(rollup.origin.day), len(bad), pa.date32())
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


def names(rollups: Sequence[Rollup], keys: pa.Array[Any]) -> pa.Table:
    """The tests of some keys (columns `key` and `test`), each from the first of `rollups` that has it."""
    found = [pa.schema([SUMS.field(name) for name in ("key", "test")]).empty_table()]
    for rollup in rollups:
        if not len(keys):
            break
        here = kernels.is_in(rollup.table(["key"])["key"], keys)
        if kernels.any(here).as_py():
            rows = rollup.table(["key", "place"]).filter(here)
            try:
                tests = rollup.tests(rows["place"])
            except DamagedError as error:  # an older rollup may have the names, too
                _LOG.warning("passed over: %s", error)
                continue
            found.append(pa.table({"key": rows["key"], "test": tests}))
            keys = keys.filter(kernels.invert(kernels.is_in(keys, one_chunk(rows["key"]))))
    return pa.concat_tables(found)


def _known_names(before: pa.Table | None, rollups: Sequence[Rollup], keys: pa.Array[Any]) -> pa.Table:
    known = SUMS.empty_table() if before is None else before.filter(kernels.is_in(before["key"], keys))
    known = known.filter(kernels.is_valid(known["test"])).select(["key", "test"]).replace_schema_metadata()
    missing = keys.filter(kernels.invert(kernels.is_in(keys, known["key"].combine_chunks())))
    newest = sorted(rollups, key=lambda rollup: rollup.origin.day, reverse=True)
    return pa.concat_tables([known, names(newest, missing)])


def _signed(rows: pa.Table, sign: int) -> pa.Table:
    verdicts, weight = rows["verdict"], pa.scalar(sign, pa.int32())
    ran = kernels.is_in(verdicts, pa.array(_RAN, pa.int8()))
    kinds = (ran, kernels.equal(verdicts, _FAILED), kernels.equal(verdicts, _FLAKY))
    masks = [kernels.and_not(kind, rows["cached"]) for kind in kinds]
    columns = [kernels.multiply(mask.cast(pa.int32()), weight) for mask in masks]
    return pa.Table.from_arrays([rows["key"], *columns], schema=_STREAM)
