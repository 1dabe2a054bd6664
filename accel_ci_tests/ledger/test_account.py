from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from accel_ci.errors import LedgerError
from accel_ci.ledger.account import account_of
from accel_ci.ledger.verdicts import make_account
from accel_ci.model import OUTCOMES, VERDICTS, Attempt, Build, SelectedTest
from accel_ci.results.rollups import judge_tests, named
from accel_ci.results.rows import from_attempts, from_report
from accel_ci_tests.fixtures.stored_attempts import to_attempts


def judged(rows: pa.Table) -> pa.Table:
    return named(judge_tests(rows), rows["test"])


@pytest.mark.parametrize("seed", range(3))
def test_the_account_is_that_of_make_account(seed: int, attempt: Callable[..., Attempt]) -> None:
    rng = random.Random(seed)
    expected = [f"t{number}" for number in range(100)]
    reported = [*rng.sample(expected, 80), "surprise", "another"]
    attempts = [attempt(test, rng.choice(OUTCOMES), round=round) for round in (1, 2) for test in reported]
    slow = make_account([SelectedTest("unit", test) for test in expected], attempts)
    fast = account_of(pa.array(expected), judged(from_attempts(Build("r", "v"), "unit", attempts)))
    assert fast.counts == slow.counts == {**dict.fromkeys(VERDICTS, 0), **slow.counts}
    assert dict(zip(*fast.verdicts.select(["test", "verdict"]).to_pydict().values(), strict=True)) == {
        verdict.test: verdict.verdict for verdict in slow.verdicts
    }
    assert fast.unexpected == ("another", "surprise")


def test_a_test_that_is_expected_twice_is_an_error() -> None:
    rollup = judged(from_attempts(Build("r", "v"), "unit", []))
    with pytest.raises(LedgerError, match="t is expected twice"):
        account_of(pa.array(["t", "u", "t"]), rollup)
    assert account_of(pa.array(["t", "u"]), rollup).counts["not_run"] == 2
    assert account_of(pa.array([], pa.string()), rollup).counts == dict.fromkeys(VERDICTS, 0)


@pytest.mark.parametrize(
    ("outcomes", "verdict", "message"),
    [
        (["failed", "passed"], "flaky", "0"),
        (["passed", "failed"], "flaky", "1"),
        (["failed", "failed"], "failed", "1"),
        (["skipped", "passed"], "passed", "1"),
    ],
)
def test_attempts_within_a_round_of_a_report_are_judged_in_their_order(
    outcomes: list[str], verdict: str, message: str
) -> None:
    """Report rows may come in any order: `attempt` says which was first."""
    table = pa.table({
        "classname": ["C", "C"], "name": ["a", "a"], "attempt": [1, 0], "outcome": outcomes[::-1], "message": ["1", "0"],
    })  # fmt: skip
    [rows] = from_report(Build("r", "v"), "unit", table)
    [found] = make_account([SelectedTest("unit", "C::a")], to_attempts(rows)).verdicts
    assert (found.verdict, found.attempts, found.message) == (verdict, tuple(outcomes), message)
    assert account_of(pa.array(["C::a"]), judged(rows)).verdicts["verdict"].to_pylist() == [verdict]
