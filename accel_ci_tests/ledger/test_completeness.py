"""The budgets of a suite: what is too little, and what is said of it."""

from __future__ import annotations

import re

import pytest

from accel_ci.config.settings import Budgets
from accel_ci.ledger.completeness import too_little, too_many_gone
from accel_ci.ledger.status import shortcomings, smoke_shortcoming
from accel_ci.model import VERDICTS, Build, Ledger, Outcome, Verdict

BUILD = Build("nightly-20261127", "py3")


def counts(**found: int) -> dict[Verdict, int]:
    return dict.fromkeys(VERDICTS, 0) | found  # type: ignore[return-value]


def ledger(**found: int) -> Ledger:
    of_suite = counts(**found)
    return Ledger(BUILD, sum(of_suite.values()), of_suite, {"unit": of_suite}, (), (), 0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("found", "budgets", "words"),
    [
        ({"passed": 1}, {}, []),
        ({"passed": 5, "skipped": 5, "xfailed": 0}, {}, []),
        ({"flaky": 1, "skipped": 1}, {}, []),
        ({"xpassed": 1}, {}, []),
        (
            {"xfailed": 4},
            {},
            [r"unit: 0 of 4 tests passed, at least 1 must", r"4 of 4 tests failed as expected \(100%\), 50%"],
        ),
        (
            {"passed": 1, "skipped": 49},
            {},
            [r"49 of 50 tests were skipped \(98%\), 50% may \(suites\.unit\.budgets\.skipped\)"],
        ),
        ({"passed": 1, "skipped": 49}, {"skipped": 0.98}, []),
        ({"skipped": 3}, {"skipped": 1.0}, [r"0 of 3 tests passed"]),
        ({"skipped": 3}, {"skipped": 1.0, "passed": 0}, []),
        ({"passed": 9, "skipped": 1}, {"passed": 10}, [r"9 of 10 tests passed, at least 10 must"]),
        ({"failed": 3}, {}, []),  # it is red already
    ],
)
def test_passes_skips_and_expected_failures(found: dict[str, int], budgets: dict[str, float], words: list[str]) -> None:
    said = too_little("unit", counts(**found), None, {}, Budgets(**budgets))  # type: ignore[arg-type]
    assert len(said) == len(words)
    for sentence, pattern in zip(said, words, strict=True):
        assert re.search(pattern, sentence)


@pytest.mark.parametrize(("skipped", "before", "exceeds"), [(20, 0, False), (21, 0, True), (40, 20, False), (41, 20, True)])
def test_skips_may_not_rise_too_far(skipped: int, before: int, exceeds: bool) -> None:
    earlier = ledger(passed=100 - before, skipped=before)
    said = too_little("unit", counts(passed=100 - skipped, skipped=skipped), earlier, {}, Budgets())
    assert bool(said) == exceeds
    assert all(f"{before} of 100 in nightly-20261127; a rise of 20% is allowed" in sentence for sentence in said)


def test_what_pytest_leaves_out_is_told_with_who_did_it() -> None:
    left_out = {"deselected by -m 'not slow'": 3, "files ignored by --ignore": 2}
    [said] = too_little("unit", counts(passed=1), None, left_out, Budgets())
    assert said.startswith("unit: pytest left out 5, 0 may be: 3 deselected by -m 'not slow', 2 files ignored by --ignore;")
    assert too_little("unit", counts(passed=1), None, left_out, Budgets(left_out=5)) == []


@pytest.mark.parametrize(("gone", "baseline", "exceeds"), [(0, 0, False), (5, 100, False), (6, 100, True), (1, 1, True)])
def test_tests_that_vanish(gone: int, baseline: int, exceeds: bool) -> None:
    said = too_many_gone("unit", [f"t{number}" for number in range(gone)], baseline, Budgets(), BUILD)
    assert bool(said) == exceeds
    assert all("accel-ci accept nightly-20261127~py3 --reason" in sentence for sentence in said)
    assert gone < 4 or not said or "such as t0, t1, t2, and 3 more;" in said[0]


def test_an_incomplete_build_does_not_pass() -> None:
    account = Ledger(BUILD, 1, counts(passed=1), {}, (), (), 0, 0.0, 0.0, incomplete=("a",), vanished_reasons=("b",))
    assert shortcomings(account) == ("incomplete: a", "incomplete: b")


@pytest.mark.parametrize(
    ("outcomes", "expected", "failures", "words"),
    [
        ({}, 0, 0, None),
        ({"passed": 10}, 10, 0, None),
        ({"passed": 1, "skipped": 8, "xfailed": 1}, 10, 0, None),
        ({"passed": 1, "not_run": 9}, 10, 0, "10 tests were expected, and 1 passed and 0 were excused"),
        ({"skipped": 10}, 10, 0, "no test passed"),
        ({"passed": 9, "failed": 1}, 10, 1, "1 attempts failed"),
        ({"passed": 1}, 10, 0, "10 tests were expected, and 1 passed and 0 were excused"),
    ],
)
def test_the_smoke_gate(outcomes: dict[Outcome, int], expected: int, failures: int, words: str | None) -> None:
    assert smoke_shortcoming(outcomes, expected, failures) == words
