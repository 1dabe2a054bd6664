"""Predictions: small plans checked by hand, and others against the simulation of workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_ci.model import SelectedTest
from accel_ci.plan.guided import make_plan
from accel_ci.plan.prediction import predicted_makespan
from benchmarks.nights import make_night
from benchmarks.plan_simulation import Simulation, plan_night


def of_suite(suite: str, count: int, file: str = "a.py") -> list[SelectedTest]:
    return [SelectedTest(suite, f"{file}::test_{number}") for number in range(count)]


def test_setup_time_comes_from_an_earlier_build_or_is_a_second_per_file() -> None:
    tests = of_suite("s", 4)
    plan = make_plan(tests, {("s", test.test): 10.0 for test in tests}, 2)
    assert predicted_makespan(plan, 2, setup_s=7.0) == 27.0
    assert predicted_makespan(plan, 2) == 21.0
    assert predicted_makespan(plan, 4, setup_s=0.0) == 10.0


def test_tests_of_several_cards_come_after_the_others() -> None:
    tests = [*of_suite("narrow", 4), *of_suite("wide", 3, "b.py")]
    plan = make_plan(tests, {(test.suite, test.test): 10.0 for test in tests}, 4, widths={"wide": 2})
    assert predicted_makespan(plan, 4, setup_s=1.0) == 10.0 + 2 * 10.0 + 1.0


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 50)), min_size=1, max_size=60), st.integers(1, 9))
def test_a_prediction_lies_between_the_bound_and_the_sum(tests: list[tuple[int, float]], cards: int) -> None:
    known = {("s", f"f{file}.py::test_{number}"): seconds for number, (file, seconds) in enumerate(tests)}
    plan = make_plan([SelectedTest(*key) for key in known], known, cards)
    predicted = predicted_makespan(plan, cards, setup_s=0.0)
    assert plan.lower_bound_s - 1e-6 <= predicted <= plan.estimated_s + 1e-6


@pytest.mark.parametrize("cards", [8, 64])
def test_a_prediction_is_close_to_the_simulation(cards: int) -> None:
    night = make_night(seed=1, cards=cards)
    plan = plan_night(night)
    ready_s = sum(night["ready_s"]) / cards
    simulated = Simulation(night, plan).run().makespan_s
    assert predicted_makespan(plan, cards, setup_s=ready_s) == pytest.approx(simulated, rel=0.1)
