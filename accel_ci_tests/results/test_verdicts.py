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
]


def judge(lines: Sequence[str]) -> Verdict:
    """The rule in words, one test at a time."""
    own = [line for line in lines if not line.startswith("infra:") and line != "not_run"]
    if not own:
        return "infra" if any(line.startswith("infra:") for line in lines) else "not_run"
    failed = [line in FAILING_OUTCOMES for line in own]
    if any(failed):
        return "failed" if all(failed) else "flaky"
    return own[-1]  # type: ignore[return-value]


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
