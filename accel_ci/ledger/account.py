"""The account of a suite: every expected test has exactly one verdict, and the sums are exact.

The expected tests come from a selection or from a file of ids; the verdicts are those of the rollup
(`accel_ci.results.rollups`), which has the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from accel_ci.errors import AccelCiError, LedgerError
from accel_ci.model import BAD_VERDICTS, VERDICTS, Artifact, Verdict
from accel_ci.results.columns import counted, counts_of, database, kernels, literal_path, one_chunk, repeats
from accel_ci.storage.artifacts import ArtifactStore


@dataclass(frozen=True)
class SuiteAccount:
    """The verdicts of a suite's expected tests, counted, and the tests that nobody expected.

    `verdicts` has the columns `test` and `verdict`, a row per expected test by name. `unexpected_failures` are those of the
    `unexpected` tests that failed or were lost, such as the end of a pytest session.
    """

    verdicts: pa.Table
    counts: dict[Verdict, int]
    unexpected: tuple[str, ...]
    unexpected_failures: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """The expected tests that did not run."""
        missing = self.verdicts.filter(kernels.equal(self.verdicts["verdict"], "not_run"))
        return [str(test) for test in missing["test"].to_pylist()]


def expected_tests(selection: Artifact, artifacts: ArtifactStore) -> dict[str, pa.Array[Any]]:
    """The ids of the selected tests of each suite; `selection` is a JSON artifact, a list of `SelectedTest`."""
    with database() as connection:
        file = literal_path(artifacts.path(selection))
        table = connection.sql(
            """
            SELECT suite, test FROM read_json($file, format = 'array', auto_detect = false, maximum_object_size = 4194304,
                                              columns = {suite: 'VARCHAR', test: 'VARCHAR'})
            """,
            params={"file": file},
        ).to_arrow_table()
    return {
        suite: one_chunk(table.filter(kernels.equal(table["suite"], suite))["test"]) for suite in counts_of(table["suite"])
    }


def read_expected(path: Path) -> pa.Array[Any]:
    """The ids of a file with one a line; blank lines and those that begin with `#` do not count.

    Raises `AccelCiError` when there is none: an account of nothing would always balance.
    """
    lines = (line.strip() for line in path.read_text("utf-8").splitlines())
    tests = [line for line in lines if line and not line.startswith("#")]
    if not tests:
        raise AccelCiError(f"{path} names no test; write the ids of the tests that must run, one a line")
    return pa.array(tests, pa.string())


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
        unexpected: list[tuple[str, Verdict]] = connection.sql(
            """
            SELECT test, name FROM judged ANTI JOIN expected USING (test) JOIN codes ON verdict = code ORDER BY test
            """
        ).fetchall()
    tests = verdicts["test"].combine_chunks()
    twice = tests[1:].filter(repeats(tests))
    if len(twice):
        raise LedgerError(f"{twice[0].as_py()} is expected twice; the selection must name each test once")
    totals = counts_of(verdicts["verdict"])
    counts = {verdict: totals.get(verdict, 0) for verdict in VERDICTS}
    check_balance(len(expected), counts)
    failures = tuple(test for test, verdict in unexpected if verdict in BAD_VERDICTS and verdict != "flaky")
    return SuiteAccount(verdicts, counts, tuple(test for test, _ in unexpected), failures)


def check_balance(expected: int, counts: Mapping[Verdict, int]) -> None:
    """Raise `LedgerError`, naming the difference, unless the verdicts sum to `expected`."""
    total = sum(counts.values())
    if total != expected:
        parts = " + ".join(f"{count} {verdict}" for verdict, count in counts.items())
        raise LedgerError(f"the ledger does not balance: {expected} expected, but {parts} = {total} ({total - expected:+d})")
