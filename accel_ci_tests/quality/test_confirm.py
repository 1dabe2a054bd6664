"""The choice of failures to run again, and the causes that reruns change."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_ci.model import Build
from accel_ci.quality.causes import Blame, Doubt
from accel_ci.quality.confirm import (
    CERTAIN,
    NOTHING_TO_LEARN,
    OVER_BUDGET,
    REPRESENTED,
    ConfirmRules,
    RerunPlan,
    choose_reruns,
    information,
)
from accel_ci.quality.places import Place

BUILD, EARLIER = Build("nightly-2", "py3"), Build("nightly-1", "py3")


def blame(test: str, signature: str | None = None, **changes: Any) -> Blame:
    """Return a failure that may be flaky or broken since this build."""
    found = Blame(
        "unit", f"a.py::{test}", BUILD, "unknown", 0.9, 0, 1, "", (), signature or f"{test} broke", BUILD, EARLIER,
        doubt=Doubt(0.1, 0.3),
    )  # fmt: skip
    return replace(found, **changes)


def choose(
    *blames: Blame, card_s: Mapping[str, float] | None = None, budget_s: float = 100.0, most: int = 4, **more: Any
) -> RerunPlan:
    costs = {each.identity: (card_s or {}).get(each.test.removeprefix("a.py::"), 1.0) for each in blames}
    return choose_reruns(blames, costs, budget_s, most, **more)


def chosen(plan: RerunPlan) -> list[str]:
    return [rerun.test.removeprefix("a.py::") for rerun in plan.reruns]


def test_what_is_certain_does_not_run_again_nor_what_no_rerun_can_settle() -> None:
    certain = blame("certain", cause="backend", probability=0.995)
    lost = blame("lost", cause="infra", probability=0.98, doubt=None)
    plan = choose(certain, lost, blame("open"))
    assert chosen(plan) == ["open"]
    assert plan.left_out == {CERTAIN: 1, NOTHING_TO_LEARN: 1}


def test_an_old_breakage_in_which_nobody_believes_in_a_flake_tells_nothing() -> None:
    whose: dict[str, Any] = {"doubt": Doubt(1e-6, 0.9), "probability": 0.5}  # the backend's or upstream's
    assert not choose(blame("old", since=EARLIER, **whose)).reruns
    assert chosen(choose(blame("new", **whose))) == ["new"], "it may have been an outage"


def test_one_failure_of_an_incident_answers_for_the_others() -> None:
    ops = [blame(f"op{number}", "op broke") for number in range(30)]
    plan = choose(*ops, blame("other"), card_s={"op7": 0.5})
    assert chosen(plan)[0] == "op7", "the cheapest"
    assert Counter("op" in test for test in chosen(plan)) == {True: 2, False: 1}
    assert (plan.reruns[0].failures, plan.reruns[-1].failures) == (30, 1)
    assert plan.left_out == {REPRESENTED: 28}
    alone = choose(*ops, rules=ConfirmRules(per_incident=1))
    assert len(alone.reruns) == 1


def test_the_second_failure_of_an_event_only_adds_what_is_left_open() -> None:
    first, second = choose(*(blame(f"op{number}", "op broke") for number in range(2))).reruns
    assert first.bits > 4 * second.bits > 0


def test_failures_at_one_place_are_one_event() -> None:
    place = Place("card", "h:0")
    at_card = [blame(f"t{n}", cause="infra", probability=0.97, place=place, doubt=Doubt(0.97, 0.01)) for n in range(9)]
    plan = choose(*(replace(each, signature="tensors differ", since=None) for each in at_card))
    assert plan.reruns[0].failures == 9
    assert len(plan.reruns) <= 2


def test_what_tells_most_for_the_card_seconds_comes_first() -> None:
    even, sure = Doubt(0.5, 0.3), Doubt(0.02, 0.3)
    plan = choose(blame("sure", doubt=sure), blame("even", doubt=even), blame("slow", doubt=even), card_s={"slow": 33.0})
    assert chosen(plan) == ["even", "sure"]
    assert plan.left_out == {OVER_BUDGET: 1}, "3 runs take 99 s, and fewer are left of 100 s"
    assert chosen(choose(blame("slow", doubt=even), blame("quick", doubt=even), card_s={"slow": 20.0})) == ["quick", "slow"]


def test_what_does_not_fit_is_passed_over_for_what_does() -> None:
    many = [blame(f"op{number}", "op broke") for number in range(50)]
    plan = choose(*many, blame("small"), card_s={each.test.removeprefix("a.py::"): 20.0 for each in many}, budget_s=10)
    assert chosen(plan) == ["small"]
    assert not choose(blame("any"), budget_s=0).reruns


def test_a_flake_of_a_high_rate_runs_more_often() -> None:
    times = {rate: choose(blame("t", doubt=Doubt(0.5, rate)), most=9).reruns[0].times for rate in (0.01, 0.3, 0.5, 0.9)}
    assert times == {0.01: 2, 0.3: 3, 0.5: 5, 0.9: 9}


def test_what_cannot_run_again_is_counted_with_its_reason() -> None:
    plan = choose(blame("a"), blame("b"), unfit={("unit", "a.py::b"): "dependent on the tests before"})
    assert chosen(plan) == ["a"]
    assert plan.in_words() == (
        "1 of 2 failures run again, for 3.0 of 100.0 card-seconds; left out: 1 dependent on the tests before"
    )


@pytest.mark.parametrize("passing", [0.0, 0.01, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.999, 1.0])
def test_each_rerun_tells_less_than_the_one_before_and_all_together_no_more_than_there_is_to_know(
    passing: float, rate: float
) -> None:
    told = [information(passing, rate, reruns) for reruns in range(12)]
    steps = [after - before for before, after in itertools.pairwise(told)]
    assert told[0] == pytest.approx(0, abs=1e-9)
    assert all(step >= -1e-9 for step in steps)
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(steps))
    assert told[-1] <= 1


FAILURES = st.lists(
    st.tuples(
        st.integers(0, 5),  # the signature
        st.floats(0, 1),  # the probability of the cause
        st.floats(0, 1),  # that it passes
        st.floats(0, 1),  # its rate then
        st.floats(0.001, 500),  # seconds
        st.booleans(),  # that it began now
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(FAILURES, st.floats(0, 1000), st.integers(2, 10))
def test_the_budget_is_kept_and_each_failure_counts_once(failures: list[Any], budget_s: float, most: int) -> None:
    rules, blames, costs = ConfirmRules(), list[Blame](), {}
    for number, (signature, probability, passing, rate, seconds, is_new) in enumerate(failures):
        since = BUILD if is_new else EARLIER
        one = blame(f"t{number:02d}", f"s{signature}", since=since, probability=probability, doubt=Doubt(passing, rate))
        blames.append(one)
        costs[one.identity] = seconds
    plan = choose_reruns(blames, costs, budget_s, most)
    assert plan.card_s <= budget_s * (1 + 1e-9)
    assert len(plan.reruns) + sum(plan.left_out.values()) == len(blames) == plan.failures
    assert len({rerun.identity for rerun in plan.reruns}) == len(plan.reruns)
    assert all(2 <= rerun.times <= most and rerun.bits >= rules.least for rerun in plan.reruns)
    known = {each.identity: each for each in blames}
    assert all(known[rerun.identity].probability < rules.certain for rerun in plan.reruns)
    events = Counter((known[rerun.identity].since, known[rerun.identity].signature) for rerun in plan.reruns)
    assert all(count <= rules.per_incident for count in events.values())
    assert choose_reruns(blames[::-1], costs, budget_s, most) == plan, "the order of the failures does not matter"
