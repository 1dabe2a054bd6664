"""Count the tests in scope, those enabled and those that pass: of each suite, op, dtype and file, and over builds.

A test is in scope unless a rule leaves it out, and enabled if it runs. It passes with one of the verdicts in `PASSING`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from accel_ci.model import Build, Verdict
from accel_ci.results.columns import database

PASSING: tuple[Verdict, ...] = ("passed", "flaky", "xpassed")


@dataclass(frozen=True)
class Counts:
    """Numbers of tests; each one includes the next."""

    collected: int = 0
    in_scope: int = 0
    enabled: int = 0
    passing: int = 0

    def __add__(self, other: Counts) -> Counts:
        """Add the numbers of other tests."""
        return Counts(
            self.collected + other.collected,
            self.in_scope + other.in_scope,
            self.enabled + other.enabled,
            self.passing + other.passing,
        )

    @property
    def share(self) -> float:
        """The enabled share of the tests in scope, from 0 to 1."""
        return self.enabled / self.in_scope if self.in_scope else 0.0

    @property
    def passing_share(self) -> float:
        """The share of the tests in scope that are enabled and pass."""
        return self.passing / self.in_scope if self.in_scope else 0.0


@dataclass(frozen=True)
class Coverage:
    """The counts of a build, in all and by suite, op, dtype and file; tests without a dtype are in none, say.

    `reasons` are those of the tests that are out of scope, or not enabled yet.
    """

    build: Build
    suites: dict[str, Counts]
    reasons: dict[str, int] = field(default_factory=dict)
    ops: dict[str, Counts] = field(default_factory=dict)
    dtypes: dict[str, Counts] = field(default_factory=dict)
    files: dict[str, Counts] = field(default_factory=dict)

    @property
    def total(self) -> Counts:
        """The counts of all suites."""
        return sum(self.suites.values(), Counts())

    @property
    def ops_enabled(self) -> int:
        """The number of ops that an enabled test covers."""
        return sum(counts.enabled > 0 for counts in self.ops.values())


@dataclass(frozen=True)
class TrendPoint:
    """The counts of a build at the time of its revision."""

    build: Build
    at: datetime
    counts: Counts


@dataclass(frozen=True)
class CoverageReport:
    """The newest coverage of each variant, and the `trend` over its builds, oldest first. `suites` are those counted."""

    suites: tuple[str, ...] = ()
    latest: tuple[Coverage, ...] = ()
    trend: tuple[TrendPoint, ...] = ()

    def of_variant(self, variant: str) -> tuple[TrendPoint, ...]:
        """The trend of a variant, oldest first."""
        return tuple(point for point in self.trend if point.build.variant == variant)


_BY = {
    "suites": "suite",
    "ops": "op",
    "dtypes": "unnest(dtypes)",
    "files": "file",
}


def measure_coverage(build: Build, scope: pa.Table, verdicts: pa.Table, suites: Collection[str] = ()) -> Coverage:
    """Count the tests of a build.

    Args:
        build: The build.
        scope: Its table of scope (`accel_ci.scope.table`).
        verdicts: The columns `suite`, `test` and `verdict` of the tests that ran.
        suites: The suites that count; none for all.
    """
    known = scope.select(["suite", "test", "file", "op", "dtypes", "status", "reason"])
    with database(scope=known, verdicts=verdicts.select(["suite", "test", "verdict"])) as connection:
        connection.execute(
            """
            CREATE TEMP TABLE tests AS
            SELECT scope.*, status <> 'out_of_scope' AS in_scope, status = 'enabled' AS enabled,
                   coalesce(enabled AND list_contains($passing, verdict), false) AS passing
            FROM scope LEFT JOIN verdicts USING (suite, test) WHERE len($suites) = 0 OR list_contains($suites, suite)
            """,
            {"passing": list(PASSING), "suites": sorted(suites)},
        )
        found = {
            name: {
                key: Counts(*numbers)
                for key, *numbers in connection.execute(
                    f"""
                    SELECT key, count(*), count_if(in_scope), count_if(enabled), count_if(passing)
                    FROM (SELECT *, {column} AS key FROM tests) WHERE key IS NOT NULL GROUP BY key ORDER BY key
                    """  # noqa: S608 (names of our own columns)
                ).fetchall()
            }
            for name, column in _BY.items()
        }
        reasons = connection.execute(
            """
            SELECT coalesce(reason, status), count(*) AS tests FROM tests WHERE status <> 'enabled'
            GROUP BY ALL ORDER BY tests DESC, 1
            """
        ).fetchall()
    return Coverage(build, reasons=dict(reasons), **found)


def lost_share(before: pa.Table, after: pa.Table, suites: Collection[str] = ()) -> tuple[Mapping[str, str], float, float]:
    """Return the tests that were enabled and are collected but not enabled any more, with their status or reason.

    The shares of both builds follow. Tests that are gone are not among them: a build that loses tests has other checks.
    """
    with database(before=before.select(["suite", "test", "status"]), after=after) as connection:
        chosen = {"suites": sorted(suites)}
        lost = connection.execute(
            """
            SELECT suite || ': ' || test, coalesce(after.reason, after.status)
            FROM before JOIN after USING (suite, test)
            WHERE before.status = 'enabled' AND after.status <> 'enabled'
              AND (len($suites) = 0 OR list_contains($suites, suite)) ORDER BY ALL
            """,
            chosen,
        ).fetchall()
        shares: list[float] = []
        for name in ("before", "after"):
            question = f"""
                SELECT count_if(status = 'enabled') / nullif(count_if(status <> 'out_of_scope'), 0)
                FROM {name} WHERE len($suites) = 0 OR list_contains($suites, suite)
                """  # noqa: S608 (a name of our own)
            row = connection.execute(question, chosen).fetchone()
            shares.append((row[0] if row else None) or 0.0)
    return dict(lost), shares[0], shares[1]


def add_to_trend(trend: Sequence[TrendPoint], points: Sequence[TrendPoint], kept: int = 400) -> tuple[TrendPoint, ...]:
    """Add points to a trend, in the order of time; a point replaces the earlier one of its build. Keep the newest."""
    known = {point.build: point for point in (*trend, *points)}
    return tuple(sorted(known.values(), key=lambda point: (point.at, point.build.name))[-kept:])
