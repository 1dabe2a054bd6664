"""The verdict rule: a table of cases, and a scalar form that the vectorised one is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_ci.model import FAILING_OUTCOMES, OUTCOMES, VERDICTS, Attempt, Build, Verdict
from accel_ci.results.rollups import judge_tests
from accel_ci_tests.fixtures.stored_attempts import rows_of

Lines = list[str]
"""The outcomes of a test's attempts in their order; `infra:` marks one that the infrastructure lost."""

CASES: list[tuple[Lines, Verdict]] = [
    (["passed"], "passed"),
    (["skipped"], "skipped"),
    (["xfailed"], "xfailed"),
    (["xpassed"], "xpassed"),
    (["not_run"], "not_run"),
    (["failed"], "failed"),
    (["error"], "failed"),
    (["crashed"], "failed"),
    (["timeout"], "failed"),
    # Only a test that passes as often as it fails is a flake, whatever came first.
    (["failed", "passed"], "flaky"),
    (["error", "passed"], "flaky"),
    (["crashed", "passed"], "flaky"),
    (["failed", "passed", "passed"], "flaky"),
    (["timeout", "failed", "passed", "passed"], "flaky"),
    (["failed", "skipped", "passed"], "flaky"),
    (["failed", "passed", "skipped"], "flaky"),
    (["failed", "passed", "infra:failed"], "flaky"),
    (["failed", "passed", "xpassed"], "flaky"),
    (["passed", "failed"], "flaky"),
    (["failed", "xpassed"], "flaky"),
    # A flake must not hide a regression.
    (["failed", "passed", "failed"], "failed"),
    (["passed", "failed", "failed"], "failed"),
    (["timeout", "failed", "passed"], "failed"),
    (["crashed", "passed", "error"], "failed"),
    (["failed", "passed", "skipped", "failed"], "failed"),
    # Everything else leaves a failure what it is.
    (["failed", "failed"], "failed"),
    (["crashed", "crashed"], "failed"),
    (["timeout", "timeout"], "failed"),
    (["failed", "skipped"], "failed"),
    (["error", "skipped"], "failed"),
    (["crashed", "skipped"], "failed"),
    (["timeout", "skipped"], "failed"),
    (["failed", "xfailed"], "failed"),
    (["error", "xfailed"], "failed"),
    (["crashed", "xfailed"], "failed"),
    (["timeout", "xfailed"], "failed"),
    (["failed", "not_run"], "failed"),
    (["error", "not_run"], "failed"),
    (["crashed", "not_run"], "failed"),
    (["timeout", "not_run"], "failed"),
    (["failed", "skipped", "skipped"], "failed"),
    (["failed", "skipped", "failed"], "failed"),
    (["skipped", "failed"], "failed"),
    (["xfailed", "failed"], "failed"),
    (["not_run", "failed"], "failed"),
    (["failed", "infra:failed"], "failed"),
    (["failed", "infra:not_run"], "failed"),
    (["infra:failed", "failed"], "failed"),
    (["infra:failed", "failed", "skipped"], "failed"),
    # Without a failure, the outcome stands that proves most: a test that is run again with others is not worse for a skip.
    (["passed", "skipped"], "passed"),
    (["skipped", "passed"], "passed"),
    (["passed", "xfailed"], "passed"),
    (["xfailed", "passed"], "passed"),
    (["passed", "not_run"], "passed"),
    (["not_run", "passed"], "passed"),
    (["passed", "xpassed"], "passed"),
    (["xpassed", "xfailed"], "xpassed"),
    (["xpassed", "skipped"], "xpassed"),
    (["xfailed", "skipped"], "xfailed"),
    (["skipped", "not_run"], "skipped"),
    # What the infrastructure lost does not count, but needs a result of the test's own; a skip is none.
    (["infra:failed"], "infra"),
    (["infra:failed", "infra:crashed"], "infra"),
    (["infra:not_run"], "infra"),
    (["infra:failed", "not_run"], "infra"),
    (["infra:failed", "skipped"], "infra"),
    (["skipped", "infra:failed"], "infra"),
    (["infra:failed", "passed"], "passed"),
    (["infra:failed", "xfailed"], "xfailed"),
    (["passed", "infra:failed"], "passed"),
    (["infra:failed", "failed", "passed"], "flaky"),
]


def judge(lines: Sequence[str]) -> Verdict:
    """The rule in words, one test at a time."""
    own = [line for line in lines if not line.startswith("infra:")]
    failures = sum(line in FAILING_OUTCOMES for line in own)
    if failures:
        return "flaky" if sum(line in ("passed", "xpassed") for line in own) >= failures else "failed"
    proof: Verdict
    for proof in ("passed", "xpassed", "xfailed"):
        if proof in own:
            return proof
    if any(line.startswith("infra:") for line in lines):
        return "infra"
    return "skipped" if "skipped" in own else "not_run"


def verdicts_of_lines(tests: Sequence[Lines]) -> list[Verdict]:
    """The vectorised rule on tests `t0`, `t1`, …; an attempt per round, all in one build."""
    attempts = [
        Attempt(
            "s", f"t{number:03}", round, line.removeprefix("infra:"), None, None, None, None, None, None, None,  # type: ignore[arg-type]
            infra="bad card" if line.startswith("infra:") else None,
        )
        for number, lines in enumerate(tests) for round, line in enumerate(lines, 1)
    ]  # fmt: skip
    rows = rows_of(Build("r", "v"), "s", attempts)
    judged = {rows["test"][row["place"]].as_py(): row["verdict"] for row in judge_tests(rows).to_pylist()}
    return [VERDICTS[judged[test]] for test in sorted(judged)]


@pytest.mark.parametrize(("lines", "verdict"), CASES)
def test_the_scalar_rule(lines: Lines, verdict: Verdict) -> None:
    assert judge(lines) == verdict


def test_the_table_of_cases_at_once_and_one_by_one() -> None:
    assert verdicts_of_lines([lines for lines, _ in CASES]) == [verdict for _, verdict in CASES]
    assert [verdicts_of_lines([lines]) for lines, _ in CASES] == [[verdict] for _, verdict in CASES]


LINES = st.lists(st.sampled_from([*OUTCOMES, *(f"infra:{outcome}" for outcome in OUTCOMES)]), min_size=1, max_size=4)


@given(st.lists(LINES, min_size=1, max_size=20))
def test_the_vectorised_rule_is_the_scalar_one(tests: list[Lines]) -> None:
    assert verdicts_of_lines(tests) == [judge(lines) for lines in tests]


def test_attempts_within_a_round_count_in_their_order(attempt: Callable[..., Attempt]) -> None:
    rows = rows_of(Build("r", "v"), "s", [attempt("t", "skipped"), attempt("t", "passed"), attempt("u", "passed")])
    assert [VERDICTS[row["verdict"]] for row in judge_tests(rows).to_pylist()] == ["passed", "passed"]
