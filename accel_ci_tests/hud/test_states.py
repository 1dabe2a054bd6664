"""The state of a build: green or not, and where it stopped."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from accel_ci.hud.states import State, build_state, verdict_bar
from accel_ci.hud.stops import find_stop
from accel_ci.model import CheckResult, Verdict
from accel_ci.pipelines import STAGES
from accel_ci_tests.hud.samples import GREEN, NOW, ledger, record, results, wheel_with


@pytest.mark.parametrize(
    ("counts", "expected", "kind", "words"),
    [
        ({"passed": 700}, None, "passed", "all passed"),
        ({"passed": 690, "skipped": 10}, None, "passed", "none failed"),
        ({"passed": 1, "xfailed": 1, "xpassed": 1}, None, "passed", "none failed"),
        ({"passed": 697, "flaky": 3}, None, "flaky", "3 flaky"),
        ({"passed": 1687, "failed": 1012, "flaky": 3}, None, "failed", "1,012 failed"),
        ({"failed": 1, "infra": 2, "not_run": 3}, None, "failed", "1 failed"),
        ({"passed": 9, "infra": 1}, None, "incomplete", "1 infra"),
        ({"passed": 9, "not_run": 1}, None, "incomplete", "1 not run"),
        ({"passed": 9, "infra": 1, "not_run": 2}, None, "incomplete", "1 infra · 2 not run"),
        ({"not_run": 700}, None, "incomplete", "700 not run"),
        ({"skipped": 700}, None, "incomplete", "all skipped"),
        ({}, None, "incomplete", "no tests"),
        ({"passed": 5}, 0, "incomplete", "no tests"),
        ({"passed": 699}, 700, "incomplete", "does not balance"),
        ({"passed": 701}, 700, "incomplete", "does not balance"),
    ],
)
def test_the_state_of_a_build_with_a_ledger(counts: dict[Verdict, int], expected: int | None, kind: str, words: str) -> None:
    state = build_state(record(ledger(counts, expected)), NOW)
    assert (state.kind, state.words) == (kind, words)


@pytest.mark.parametrize(
    ("counts", "muted", "kind", "words"),
    [
        ({"passed": 5, "failed": 2}, 2, "flaky", "2 failed in quarantine"),
        ({"passed": 5, "failed": 2, "flaky": 1}, 2, "flaky", "1 flaky · 2 failed in quarantine"),
        ({"passed": 5, "failed": 3}, 2, "failed", "1 failed"),
    ],
)
def test_failures_that_are_muted_make_no_build_red(counts: dict[Verdict, int], muted: int, kind: str, words: str) -> None:
    account = ledger(counts, muted=tuple(f"unit: test_{number}" for number in range(muted)))
    state = build_state(record(account), NOW)
    assert (state.kind, state.words) == (kind, words)


def test_a_ledger_with_a_missing_suite_is_not_green() -> None:
    state = build_state(record(ledger({"passed": 7}, missing_suites=("integration", "pytorch"))), NOW)
    assert (state.kind, state.words) == ("incomplete", "no results from integration, pytorch")


def test_a_failure_that_belongs_to_no_expected_test_is_not_green() -> None:
    account = ledger({"passed": 7}, unexpected=("unit: (session)",), unexpected_failures=("unit: (session)",))
    state = build_state(record(account), NOW)
    assert (state.kind, state.words) == ("failed", "failed beside the expected tests: unit: (session)")


def test_a_ledger_that_lacks_verdicts_it_should_count_is_judged_by_what_it_has() -> None:
    assert build_state(record(replace(ledger({}), expected=3, counts={"passed": 3})), NOW).kind == "passed"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"changed_at": NOW - timedelta(hours=1)},
         State("stopped", "unfinished at test_selection", "after smoke_results", NOW - timedelta(hours=1))),
        ({"changed_at": NOW - timedelta(hours=30)},
         State("stopped", "stopped at test_selection", "after smoke_results", NOW - timedelta(hours=30))),
        ({"changed_at": None}, State("stopped", "stopped at test_selection", "after smoke_results")),
        ({"present": (), "changed_at": None}, State("stopped", "stopped at wheel", "no manifest yet")),
        ({"present": STAGES[:6], "changed_at": None}, State("stopped", "stopped at ledger", "after device_test_results")),
        ({"smoke_results": results((), 1.0, failed=2)},
         State("stopped", "stopped at smoke_results",
               "2 smoke failed · smoke_results: 2 smoke attempts failed; their tests are unreadable", NOW)),
        ({"unreadable": ("smoke_results",), "changed_at": None},
         State("stopped", "stopped at test_selection", "smoke_results unreadable · after smoke_results")),
        ({"present": STAGES, "unreadable": ("ledger",)}, State("unreadable", "ledger unreadable", "the manifest is broken")),
    ],
)  # fmt: skip
def test_the_state_of_a_build_without_a_ledger(changes: dict[str, Any], state: State) -> None:
    found = build_state(record(None, **changes), NOW)
    assert found == state
    assert found.kind not in GREEN


def test_a_stage_that_ran_on_after_a_failed_check_is_where_the_build_stopped() -> None:
    faulty = wheel_with(CheckResult("tags", False, "1 wrong tag"))
    assert find_stop(record(None, present=STAGES[:2], wheel=faulty)).stage == STAGES[2]


@pytest.mark.parametrize(
    ("activity", "words", "faults"),
    [
        ("stopped after smoke_results failed", "stopped after smoke_results failed", 1),
        ("running at wheel", "running at wheel", 0),
        ("running at smoke_results", "running at smoke_results", 0),
        ("stopped at wheel", "stopped at wheel", 0),
    ],
)
def test_faults_of_an_earlier_run_are_not_those_of_the_last(activity: str, words: str, faults: int) -> None:
    again = record(None, present=STAGES[:4], smoke_results=results((), 1.0, failed=1), activity={"integration": activity})
    assert build_state(again, NOW).words == words
    assert len(find_stop(again).faults) == faults


def test_one_failure_among_thousands_is_seen_in_the_bar() -> None:
    bar = verdict_bar({"passed": 30_000, "failed": 1})
    assert list(bar) == ["failed", "passed"]
    assert bar["failed"][1] > 1.5
    assert bar["passed"][0] == bar["failed"][1]
    assert sum(width for _, width in bar.values()) == pytest.approx(100, abs=0.05)
    assert verdict_bar({"passed": 0}) == {}
