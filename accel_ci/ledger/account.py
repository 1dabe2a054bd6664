"""The account of a suite in columns: as `accel_ci.ledger.verdicts.make_account`, for a million tests from reports.

The verdicts are those of the rollup, which are `judge`'s. Here belongs also the file that names the tests to expect.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from accel_ci.errors import AccelCiError, LedgerError
from accel_ci.ledger.verdicts import check_balance
from accel_ci.model import VERDICTS, Verdict
from accel_ci.results.columns import counted, counts_of, database, kernels, repeats


@dataclass(frozen=True)
class SuiteAccount:
    """The verdicts of a suite's expected tests, counted, and the tests that nobody expected.

    `verdicts` has the columns `test`, `verdict`, `duration_s` and `message`, a row per expected test by name.
    """

    verdicts: pa.Table
    counts: dict[Verdict, int]
    unexpected: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """The expected tests that did not run."""
        missing = self.verdicts.filter(kernels.equal(self.verdicts["verdict"], "not_run"))
        return [str(test) for test in missing["test"].to_pylist()]


def read_expected(path: Path) -> pa.Array[Any]:
    """The ids of a file with one a line; blank lines and those that begin with `#` do not count.

    Raises `AccelCiError` when there is none: an account of nothing would always balance.
    """
    lines = (line.strip() for line in path.read_text("utf-8").splitlines())
    tests = [line for line in lines if line and not line.startswith("#")]
    if not tests:
        raise AccelCiError(f"{path} names no test; write the ids of the tests that must run, one a line")
    return pa.array(tests, pa.string())


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
