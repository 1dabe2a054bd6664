"""The record of each test in the builds of a window, nightlies and sweeps alike: tries, passes, last verdict, seconds.

It reads rollups; what follows from the numbers is `accel_ci.ramp.chances`.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, timedelta
from typing import Any, cast

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from accel_ci.errors import DamagedError
from accel_ci.model import CONFIRM, VERDICTS, trigger_of_key
from accel_ci.results.columns import constant, database, schema_of
from accel_ci.results.store import ResultsStore
from accel_ci.results.stored_suite import ask_again

EVIDENCE = schema_of(
    suite=pa.string(), key=pa.uint64(), tries=pa.int32(), passes=pa.int32(), last=pa.string(), last_day=pa.date32(),
    duration_s=pa.float64(),
)  # fmt: skip
"""A row per test that ran. `tries` are builds that gave it a verdict, a skip included: it did not pass either;
`passes` those in which it passed. `last` and `last_day` are the verdict and the day of the last of them, `duration_s` is the
median over them."""

_TRIED = [code for code, verdict in enumerate(VERDICTS) if verdict not in ("infra", "not_run")]
_PASSED = [VERDICTS.index("passed"), VERDICTS.index("xpassed")]
_COLUMNS = ("key", "verdict", "started_at", "duration_s", "cached")
_QUESTION = """
SELECT suite, key, count(*)::INT AS tries, count_if(list_contains($passed, verdict))::INT AS passes,
       $names[max_by(verdict, (day, started_at)) + 1] AS last, max(day) AS last_day,
       median(duration_s) FILTER (duration_s BETWEEN 0 AND $limit) AS duration_s
FROM stream WHERE list_contains($tried, verdict) AND NOT coalesce(cached, false) GROUP BY suite, key
"""


@ask_again
def gather_evidence(
    store: ResultsStore,
    variant: str,
    suites: Collection[str],
    today: date,
    window_days: int,
    limit_s: float,
    later: Collection[str] = (),
) -> pa.Table:
    """Return the evidence (columns of `EVIDENCE`) of a variant's suites; `limit_s` is the longest duration that counts.

    The builds of the revisions `later` do not count.
    """
    tables = [EVIDENCE.empty_table()]
    for suite in sorted(suites):
        stored = [
            one
            for one in store.suites(today - timedelta(days=window_days), today, variant=variant, suite=suite)
            # A broken pull request says nothing of the branch, and of a failure that runs again, its own build tells enough.
            if trigger_of_key(one.build.revision) not in ("pr", CONFIRM) and one.build.revision not in later
        ]
        rows = []
        for one in stored:
            try:
                [rollup] = store.rollups([one])
                table = rollup.table(list(_COLUMNS)).replace_schema_metadata()
            except DamagedError:  # `accel-ci doctor` reports it
                continue
            rows.append(table.append_column("day", constant(one.day, len(table), pa.date32())))
        if rows:
            stream = pa.concat_tables(rows)
            stream = stream.append_column("suite", constant(suite, len(stream), pa.string()))
            asked = {"tried": _TRIED, "passed": _PASSED, "names": list(VERDICTS), "limit": limit_s}
            with database(stream=stream) as connection:
                tables.append(connection.sql(_QUESTION, params=asked).to_arrow_table().cast(EVIDENCE))
    return pa.concat_tables(tables)


def with_evidence(scope: pa.Table, evidence: pa.Table) -> pa.Table:
    """Add the columns of the evidence to a table of scope, in its order; a test without any has no tries."""
    keys = map(cast(Any, xxh3_64_intdigest), scope["test"].cast(pa.binary()).to_pylist())
    numbered = scope.append_column("key", pa.array(list(keys), pa.uint64()))
    numbered = numbered.append_column("place", pa.array(range(len(scope)), pa.int64()))
    with database(scope=numbered, evidence=evidence) as connection:
        found: pa.Table = connection.sql(
            """
            SELECT scope.*, coalesce(tries, 0) AS tries, coalesce(passes, 0) AS passes, last, last_day, duration_s
            FROM scope LEFT JOIN evidence USING (suite, key) ORDER BY place
            """
        ).to_arrow_table()
    return found
