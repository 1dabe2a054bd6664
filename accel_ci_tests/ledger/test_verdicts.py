from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from accel_ci.errors import LedgerError
from accel_ci.ledger.verdicts import check_balance, collected_drop, judge, make_account
from accel_ci.model import VERDICTS, Attempt, Outcome, SelectedTest, Verdict


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([], "not_run"),
        (["passed"], "passed"),
        (["skipped"], "skipped"),
        (["xfailed"], "xfailed"),
        (["xpassed"], "xpassed"),
        (["not_run"], "not_run"),
        (["not_run", "passed"], "passed"),
        (["failed"], "failed"),
        (["failed", "failed"], "failed"),
        (["failed", "not_run"], "failed"),
        (["error"], "failed"),
        (["crashed", "crashed"], "failed"),
        (["timeout", "timeout"], "failed"),
        (["failed", "passed"], "flaky"),
        (["crashed", "passed"], "flaky"),
        (["timeout", "failed", "passed"], "flaky"),
        (["failed", "xfailed"], "flaky"),
        (["infra:failed"], "infra"),
        (["infra:failed", "infra:crashed"], "infra"),
        (["infra:not_run"], "infra"),
        (["infra:failed", "passed"], "passed"),
        (["infra:failed", "failed"], "failed"),
        (["infra:failed", "failed", "passed"], "flaky"),
        (["infra:failed", "not_run"], "infra"),
    ],
)
def test_verdict(outcomes: list[str], verdict: Verdict, attempt: Callable[..., Attempt]) -> None:
    attempts = [
        attempt("t", text.removeprefix("infra:"), round=number, infra="bad card" if text.startswith("infra:") else None)
        for number, text in enumerate(outcomes, 1)
    ]
    assert judge(attempts) == verdict


def test_every_expected_test_has_one_verdict_and_nothing_is_dropped(attempt: Callable[..., Attempt]) -> None:
    expected = [SelectedTest("unit", name) for name in "abcd"] + [SelectedTest("other", "a")]
    outcomes: list[tuple[str, Outcome]] = [("a", "passed"), ("b", "failed"), ("c", "skipped"), ("z", "passed")]
    attempts = [attempt(name, outcome) for name, outcome in outcomes] + [attempt("b", "passed", round=2)]
    account = make_account(expected, attempts)
    assert [(v.suite, v.test, v.verdict) for v in account.verdicts] == [
        ("unit", "a", "passed"), ("unit", "b", "flaky"), ("unit", "c", "skipped"), ("unit", "d", "not_run"),
        ("other", "a", "not_run"),
    ]  # fmt: skip
    assert account.counts == {**dict.fromkeys(VERDICTS, 0), "passed": 1, "flaky": 1, "skipped": 1, "not_run": 2}
    assert account.suites["other"]["not_run"] == 1
    assert account.unexpected == ("unit: z",)


def test_the_message_is_that_of_the_last_failure(attempt: Callable[..., Attempt]) -> None:
    attempts = [
        attempt("t", "failed", message="first"),
        attempt("t", "crashed", round=2, message="second"),
        attempt("t", "passed", round=3, message="warning"),
    ]
    [verdict] = make_account([SelectedTest("unit", "t")], attempts).verdicts
    assert (verdict.verdict, verdict.message, verdict.attempts) == ("flaky", "second", ("failed", "crashed", "passed"))


def test_an_imbalance_is_an_error_that_names_the_difference() -> None:
    with pytest.raises(LedgerError, match=r"5 expected, but 3 passed \+ 1 failed = 4 \(-1\)"):
        check_balance(5, {"passed": 3, "failed": 1})


def test_a_test_that_is_expected_twice_is_an_error() -> None:
    with pytest.raises(LedgerError, match="expected twice"):
        make_account([SelectedTest("unit", "t"), SelectedTest("unit", "t")], [])


@pytest.mark.parametrize(
    ("collected", "previous", "reason", "fault"),
    [
        (0, None, None, "no tests were collected"),
        (0, 100, "moved away", "no tests were collected"),
        (1, None, None, None),
        (100, 100, None, None),
        (120, 100, None, None),
        (95, 100, None, None),
        (94, 100, None, r"94 tests were collected, 6\.0% fewer than the last build's 100"),
        (94, 100, "suite was split", None),
        (94, 100, "", "fewer"),
        (18, 19, None, "5.3%"),
    ],
)
def test_fewer_tests_than_before_need_a_reason(
    collected: int, previous: int | None, reason: str | None, fault: str | None
) -> None:
    found = collected_drop(collected, previous, reason)
    assert (found is None) == (fault is None)
    assert fault is None or re.search(fault, found or "")
