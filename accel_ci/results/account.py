"""The account of a suite in columns: as `accel_ci.results.verdicts.make_account`, for a million tests from reports.

The verdicts are those of the rollup, which are `judge`'s. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from accel_ci.errors import LedgerError
from accel_ci.model import VERDICTS, Verdict
from accel_ci.results.columns import counted, counts_of, database, repeats
from accel_ci.results.verdicts import check_balance


@dataclass(frozen=True)
class SuiteAccount:
    """The verdicts of a suite's expected tests, counted, and the tests that nobody expected.

    `verdicts` has the columns `test`, `verdict`, `duration_s` and `message`, a row per expected test by name.
    """

    verdicts: pa.Table
    counts: dict[Verdict, int]
    unexpected: tuple[str, ...]


def account_of(expected: pa.Array[Any], rollup: pa.Table) -> SuiteAccount:
    """Give every expected test of a suite the verdict of its rollup, `not_run` where it has none.

    Raises `LedgerError` when the sums differ or a test is expected twice.
    """
    with database(
        expected=pa.table({"test": expected}),
        rollup=rollup.select(["test", "verdict", "duration_s", "message"]),
        codes=pa.table({"code": counted(len(VERDICTS)), "word": pa.array(VERDICTS)}),
    ) as connection:
        verdicts = connection.sql(
            """
            SELECT test, coalesce(word, 'not_run') AS verdict, duration_s, message
            FROM expected LEFT JOIN rollup USING (test) LEFT JOIN codes ON verdict = code ORDER BY test
            """
        ).to_arrow_table()
        unexpected = connection.sql("SELECT test FROM rollup ANTI JOIN expected USING (test) ORDER BY test").fetchall()
    tests = verdicts["test"].combine_chunks()
    twice = tests[1:].filter(repeats(tests))
    if len(twice):
        raise LedgerError(f"{twice[0].as_py()} is expected twice; the selection must name each test once")
    totals = counts_of(verdicts["verdict"])
    counts = {verdict: totals.get(verdict, 0) for verdict in VERDICTS}
    check_balance(len(expected), counts)
    return SuiteAccount(verdicts, counts, tuple(test for (test,) in unexpected))
