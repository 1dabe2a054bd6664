from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from accel_ci.errors import LedgerError
from accel_ci.ledger.account import account_of, check_balance
from accel_ci.model import OUTCOMES, VERDICTS, Attempt, Build
from accel_ci.results.rollups import judge_tests, named
from accel_ci.results.rows import from_report
from accel_ci_tests.fixtures.stored_attempts import rows_of


def judged(rows: pa.Table) -> pa.Table:
    return named(judge_tests(rows), rows["test"])


@pytest.mark.parametrize("seed", range(3))
def test_every_expected_test_has_the_verdict_of_its_attempts(seed: int, attempt: Callable[..., Attempt]) -> None:
    rng = random.Random(seed)
    expected = [f"t{number}" for number in range(100)]
    reported = [*rng.sample(expected, 80), "surprise", "another"]
    attempts = [attempt(test, rng.choice(OUTCOMES), round=round) for round in (1, 2) for test in reported]
    verdicts = judged(rows_of(Build("r", "v"), "unit", attempts))
    known = {row["test"]: VERDICTS[row["verdict"]] for row in verdicts.to_pylist()}
    account = account_of(pa.array(expected), verdicts)
    assert dict(zip(*account.verdicts.to_pydict().values(), strict=True)) == {
        test: known.get(test, "not_run") for test in expected
    }
    assert sum(account.counts.values()) == len(expected)
    assert account.unexpected == ("another", "surprise")


def test_what_nobody_expected_is_a_failure_unless_it_passed_or_was_skipped(attempt: Callable[..., Attempt]) -> None:
    attempts = [attempt("t", "failed"), attempt("lost", "failed", infra="bad card"), attempt("(session)", "error")]
    attempts += [attempt("shaky", "failed"), attempt("shaky", "passed", round=2)]
    attempts += [attempt(f"was {outcome}", outcome) for outcome in OUTCOMES]
    account = account_of(pa.array(["t"]), judged(rows_of(Build("r", "v"), "unit", attempts)))
    assert account.counts == dict.fromkeys(VERDICTS, 0) | {"failed": 1}
    assert len(account.unexpected) == 3 + len(OUTCOMES)
    bad = ("failed", "error", "crashed", "timeout", "not_run")
    assert sorted(account.unexpected_failures) == sorted(["(session)", "lost", *(f"was {outcome}" for outcome in bad)])


def test_a_test_that_is_expected_twice_is_an_error() -> None:
    rollup = judged(rows_of(Build("r", "v"), "unit", []))
    with pytest.raises(LedgerError, match="t is expected twice"):
        account_of(pa.array(["t", "u", "t"]), rollup)
    assert account_of(pa.array(["t", "u"]), rollup).counts["not_run"] == 2
    assert account_of(pa.array([], pa.string()), rollup).counts == dict.fromkeys(VERDICTS, 0)


def test_an_imbalance_is_an_error_that_names_the_difference() -> None:
    with pytest.raises(LedgerError, match=r"5 expected, but 3 passed \+ 1 failed = 4 \(-1\)"):
        check_balance(5, {"passed": 3, "failed": 1})


@pytest.mark.parametrize(
    ("outcomes", "verdict", "message"),
    [
        (["failed", "passed"], "flaky", "0"),
        (["passed", "failed"], "flaky", "1"),
        (["failed", "failed"], "failed", "1"),
        (["skipped", "passed"], "passed", None),
    ],
)
def test_attempts_within_a_round_of_a_report_are_judged_in_their_order(
    outcomes: list[str], verdict: str, message: str | None
) -> None:
    """Report rows may come in any order: `attempt` says which was first."""
    table = pa.table({
        "classname": ["C", "C"], "name": ["a", "a"], "attempt": [1, 0], "outcome": outcomes[::-1], "message": ["1", "0"],
    })  # fmt: skip
    [rows] = from_report(Build("r", "v"), "unit", table)
    assert rows["outcome"].to_pylist() == outcomes
    assert judged(rows)["message"].to_pylist() == [message]
    assert account_of(pa.array(["C::a"]), judged(rows)).verdicts["verdict"].to_pylist() == [verdict]
