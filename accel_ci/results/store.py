"""The results store: every attempt is a row of a Parquet dataset, and DuckDB answers the questions.

`results/day=YYYY-MM-DD/<revision>~<variant>~<suite>.parquet`, written whole or not at all; a build that is stored again
replaces its rows. The day is that of the revision, so that a rerun after midnight replaces its rows as well.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from accel_ci.model import Attempt, Build

_TYPES: dict[str, pa.DataType] = {
    "revision": pa.string(),
    "variant": pa.string(),
    "suite": pa.string(),
    "test": pa.string(),
    "round": pa.int32(),
    "outcome": pa.string(),
    "started_at": pa.timestamp("us", tz="UTC"),
    "duration_s": pa.float64(),
    "message": pa.string(),
    "card": pa.string(),
    "host": pa.string(),
    "worker": pa.string(),
    "infra": pa.string(),
}
_COLUMNS = pa.schema(_TYPES)
_OF_ATTEMPT = [name for name in _COLUMNS.names if name not in ("revision", "variant")]


@dataclass(frozen=True)
class TestHistory:
    """What one test did in a variant over a window: in how many builds it ran, failed for good, or was flaky."""

    __test__ = False

    variant: str
    suite: str
    test: str
    builds: int
    failed_builds: int
    flaky_builds: int
    median_s: float | None
    last_failure: str | None


class ResultsStore:
    """A folder of attempts."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, build: Build, day: date, attempts: Iterable[Attempt]) -> int:
        """Store the attempts of a build, by suite; earlier rows of the same build and suite go. Returns their number."""
        by_suite: defaultdict[str, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            by_suite[attempt.suite].append(attempt)
        folder = self.root / f"day={day.isoformat()}"
        folder.mkdir(parents=True, exist_ok=True)
        for suite, rows in by_suite.items():
            columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in _OF_ATTEMPT}
            columns |= {"revision": [build.revision] * len(rows), "variant": [build.variant] * len(rows)}
            file = folder / f"{build.name}~{suite}.parquet"
            scratch = file.with_name(f".{file.name}.{os.getpid()}")
            pq.write_table(pa.Table.from_pydict(columns, schema=_COLUMNS), scratch, compression="zstd")
            scratch.replace(file)
        return sum(map(len, by_suite.values()))

    def durations(self, variant: str, today: date, window_days: int = 30) -> dict[tuple[str, str], float]:
        """The median seconds of each (suite, test) of a variant over its attempts that ended by themselves."""
        rows = self._query(
            """
            SELECT suite, test, median(duration_s) FROM attempts
            WHERE variant = ? AND day BETWEEN ? AND ? AND duration_s IS NOT NULL AND infra IS NULL
              AND outcome NOT IN ('timeout', 'crashed', 'not_run')
            GROUP BY ALL
            """,
            [variant, today - timedelta(days=window_days), today],
        )
        return {(suite, test): seconds for suite, test, seconds in rows}

    def histories(self, today: date, window_days: int) -> list[TestHistory]:
        """Every test that ran in the window, by variant. Failures put down to the infrastructure do not count."""
        rows = self._query(
            """
            WITH builds AS (
                SELECT variant, suite, test, revision, max(day) AS day,
                       bool_or(outcome IN ('failed', 'error', 'crashed', 'timeout')) AS failed,
                       bool_or(outcome IN ('passed', 'xpassed', 'xfailed', 'skipped')) AS passed,
                       median(duration_s) AS seconds,
                       arg_max(message, started_at) FILTER (
                           outcome IN ('failed', 'error', 'crashed', 'timeout')) AS message
                FROM attempts
                WHERE day BETWEEN ? AND ? AND infra IS NULL AND outcome <> 'not_run'
                GROUP BY ALL
            )
            SELECT variant, suite, test, count(*), count(*) FILTER (failed AND NOT passed),
                   count(*) FILTER (failed AND passed), median(seconds), arg_max(message, day) FILTER (failed)
            FROM builds GROUP BY ALL ORDER BY variant, suite, test
            """,
            [today - timedelta(days=window_days), today],
        )
        return [TestHistory(*row) for row in rows]

    def _query(self, question: str, parameters: list[Any]) -> list[tuple[Any, ...]]:
        """Rows of a question about the view `attempts`; none when nothing is stored yet."""
        if not any(self.root.glob("day=*/*.parquet")):
            return []
        with duckdb.connect() as connection:
            files = str(self.root / "day=*" / "*.parquet")
            attempts = connection.read_parquet(files, hive_partitioning=True, union_by_name=True)
            attempts.create_view("attempts")
            return connection.execute(question, parameters).fetchall()
