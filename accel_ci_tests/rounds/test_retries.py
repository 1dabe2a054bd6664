"""The batches of later rounds: groups as a whole, and tests that need those before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from accel_ci.model import Batch, Outcome, SelectedTest
from accel_ci.rounds.driver import lost_batches
from accel_ci.rounds.events import Event
from accel_ci.rounds.retries import IN_ORDER_S, repetitions, retries, retries_in_order
from accel_ci.rounds.tally import Tally
from accel_ci_tests.fixtures.suite import batch

AT = datetime(2026, 11, 28, tzinfo=timezone.utc)
CARDS = ["0", "1"]


def tally_of(batches: Sequence[Batch], *rounds: dict[str, Outcome], card: str = "0") -> Tally:
    """Return the sums of some rounds, in which tests of a.py had these outcomes."""
    tally = Tally(CARDS, batches, lambda *_: None)
    for number, outcomes in enumerate(rounds, 1):
        events = [Event("attempt", AT, "suite", f"a.py::{test}", outcome) for test, outcome in outcomes.items()]
        tally.take(number, f"w0-{number}", card, events)
    return tally


def names(batches: Sequence[Batch]) -> list[list[str]]:
    return [[test.removeprefix("a.py::") for test in each.tests] for each in batches]


def test_a_group_is_run_again_as_a_whole_elsewhere() -> None:
    group = replace(batch("b0", "a.py::t1", "a.py::t2", "a.py::t3"), group="ordered")
    batches = [group, batch("b1", "a.py::u1", "a.py::u2")]
    tally = tally_of(batches, {"t1": "passed", "t2": "failed", "t3": "skipped", "u1": "failed", "u2": "passed"})
    again = retries(batches, tally, 2)
    assert names(again) == [["t1", "t2", "t3"], ["u1"]]
    assert [(each.group, each.avoid_cards) for each in again] == [("ordered", ("0",)), (None, ("0",))]
    assert len({each.id for each in again}) == 2


def test_what_runs_several_times_runs_where_it_has_not_failed_and_once_in_a_round() -> None:
    group = replace(batch("b0", "a.py::t1", "a.py::t2"), group="ordered")
    batches = [group, replace(batch("b1", "a.py::u1"), avoid_cards=("1",)), batch("b2", "a.py::u2"), batch("b3", "a.py::u3")]
    passed: dict[str, Outcome] = dict.fromkeys(("t1", "t2", "u1", "u2"), "passed")
    times = {("suite", f"a.py::{test}"): 2 for test in ("t1", "t2", "u1", "u3")}
    again = repetitions(batches, tally_of(batches, {**passed, "u3": "failed"}), 2, times)
    assert {tuple(names([each])[0]): each.avoid_cards for each in again} == {
        ("t1", "t2"): (), ("u1",): ("1",), ("u3",): ("0",),
    }  # fmt: skip
    begun = tally_of(batches, {**passed, "u3": "failed"}, {"u1": "passed"})
    assert names(repetitions(batches, begun, 2, times)) == [["t1", "t2"], ["u3"]], "a run that was killed goes on"
    assert repetitions(batches, begun, 3, times) == []


def test_a_group_in_which_nothing_failed_is_left_alone() -> None:
    group = replace(batch("b0", "a.py::t1", "a.py::t2"), group="ordered")
    assert retries([group], tally_of([group], {"t1": "xfailed", "t2": "skipped"}), 2) == []


def test_a_group_of_a_lost_worker_is_requeued_as_a_whole() -> None:
    group = replace(batch("b0", "a.py::t1", "a.py::t2", "a.py::t3"), group="ordered")
    batches = [group, batch("b1", "a.py::u1", "a.py::u2")]
    claimed = {"b0": "lost", "b1": "lost"}
    open_tests = {("suite", f"a.py::{test}") for test in ("t2", "t3", "u2")}
    assert names(lost_batches(batches, claimed, open_tests, {"w": "1"})) == [["t1", "t2", "t3"], ["u2"]]
    assert names(lost_batches(batches, claimed, {("suite", "a.py::u2")}, {"w": "1"})) == [["u2"]]


FIRST: dict[str, Outcome] = {"t1": "passed", "T::t2": "passed", "T::t3": "failed", "t4": "passed"}


def in_order(batches: Sequence[Batch], second: dict[str, Outcome], tests: Sequence[str] = ()) -> list[list[str]]:
    tally = tally_of(batches, FIRST, second)
    ordered = [SelectedTest("suite", f"a.py::{test}") for test in tests]
    return names(retries_in_order(batches, ordered, tally, 3))


def test_a_test_that_is_skipped_when_it_runs_again_runs_after_the_tests_before_it() -> None:
    batches = [batch("b0", "a.py::T::t3"), batch("b1", "a.py::t1", "a.py::T::t2", "a.py::t4")]
    order = ["t1", "T::t2", "T::t3", "t4"]
    assert in_order(batches, {"T::t3": "skipped"}, order) == [["t1", "T::t2", "T::t3"]]
    assert in_order(batches, {"T::t3": "skipped"}) == [["T::t3"]], "the order of the batches, where nothing else is known"
    for outcome in ("failed", "passed", "xfailed"):
        assert in_order(batches, {"T::t3": outcome}, order) == []


@pytest.mark.parametrize(
    ("long_test", "expected"), [("t1", [["T::t2", "T::t3"]]), ("T::t2", []), ("t4", [["t1", "T::t2", "T::t3"]])]
)
def test_what_takes_too_long_is_not_run_for_another_test(long_test: str, expected: list[list[str]]) -> None:
    batches = [replace(batch(f"b-{test[-2:]}", f"a.py::{test}"), estimate_s=1.0) for test in FIRST]
    batches = [replace(each, estimate_s=IN_ORDER_S) if each.tests[0].endswith(long_test) else each for each in batches]
    assert in_order(batches, {"T::t3": "skipped"}, list(FIRST)) == expected
