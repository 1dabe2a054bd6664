"""The account of a suite: every expected test has exactly one verdict, and the sums are exact.

The verdicts are those of the rollup (`accel_ci.results.rollups`), which has the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from accel_ci.errors import LedgerError
from accel_ci.model import VERDICTS, Verdict
from accel_ci.results.columns import counted, counts_of, database, kernels, repeats


@dataclass(frozen=True)
class SuiteAccount:
    """The verdicts of a suite's expected tests, counted, and the tests that nobody expected.

    `verdicts` has the columns `test` and `verdict`, a row per expected test by name.
    """

    verdicts: pa.Table
    counts: dict[Verdict, int]
    unexpected: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """The expected tests that did not run."""
        missing = self.verdicts.filter(kernels.equal(self.verdicts["verdict"], "not_run"))
        return [str(test) for test in missing["test"].to_pylist()]


def account_of(expected: pa.Array[Any], judged: pa.Table) -> SuiteAccount:
    """Give every expected test of a suite its verdict, `not_run` where it has no attempt.

    `judged` has the columns `test` and `verdict` of the suite (`ResultsStore.judged`). Raises `LedgerError` when the sums
    differ or a test is expected twice.
    """
    with database(
        expected=pa.table({"test": expected}),
        judged=judged.select(["test", "verdict"]),
        codes=pa.table({"code": counted(len(VERDICTS)), "name": pa.array(VERDICTS)}),
    ) as connection:
        verdicts = connection.sql(
            """
            SELECT test, coalesce(name, 'not_run') AS verdict
            FROM expected LEFT JOIN judged USING (test) LEFT JOIN codes ON verdict = code ORDER BY test
            """
        ).to_arrow_table()
        unexpected = connection.sql("SELECT test FROM judged ANTI JOIN expected USING (test) ORDER BY test").fetchall()
    tests = verdicts["test"].combine_chunks()
    twice = tests[1:].filter(repeats(tests))
    if len(twice):
        raise LedgerError(f"{twice[0].as_py()} is expected twice; the selection must name each test once")
    totals = counts_of(verdicts["verdict"])
    counts = {verdict: totals.get(verdict, 0) for verdict in VERDICTS}
    check_balance(len(expected), counts)
    return SuiteAccount(verdicts, counts, tuple(test for (test,) in unexpected))


def check_balance(expected: int, counts: Mapping[Verdict, int]) -> None:
    """Raise `LedgerError`, naming the difference, unless the verdicts sum to `expected`."""
    total = sum(counts.values())
    if total != expected:
        parts = " + ".join(f"{count} {verdict}" for verdict, count in counts.items())
        raise LedgerError(f"the ledger does not balance: {expected} expected, but {parts} = {total} ({total - expected:+d})")
