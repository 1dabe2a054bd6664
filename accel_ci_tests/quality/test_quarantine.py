"""The rule of the quarantine, people's decisions, and the debt."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest

from accel_ci.model import Build
from accel_ci.quality.grid import Point, make_grid
from accel_ci.quality.quarantine import Entry, Flakes, QuarantineRules, debt_of, decide, flakes_of

TODAY = date(2026, 11, 27)
TEST = ("unit", "test_a.py::test_a")


def nights(count: int) -> tuple[str, ...]:
    return tuple(f"nightly-{number}" for number in range(count))


def entry(state: str = "muted", by: str = "person", *, test: str = TEST[1], days: int = 10) -> Entry:
    since = TODAY - timedelta(days=5)
    return Entry("unit", test, "py3", state, "known", by, since, TODAY + timedelta(days=days))  # type: ignore[arg-type]


def states(flakes: Flakes, **more: object) -> list[tuple[str, str]]:
    given = {"people": (), "before": (), "in_scope": 1000, "today": TODAY} | more
    found, _ = decide("py3", {TEST: flakes}, **given)  # type: ignore[arg-type]
    return [(each.state, each.by) for each in found]


@pytest.mark.parametrize(
    ("flakes", "state"),
    [
        (Flakes(30, nights(1), False), None),
        (Flakes(30, nights(3), False), None),  # as a breakage that was fixed
        (Flakes(30, nights(3), True), "muted"),
        (Flakes(1000, nights(3), True), None),  # too rare
        (Flakes(30, nights(27), True), "disabled"),
    ],
)
def test_a_test_enters_by_its_rate_and_with_passes_between(flakes: Flakes, state: str | None) -> None:
    assert states(flakes) == ([(state, "rule")] if state else [])


def test_it_leaves_only_when_its_rate_is_surely_low() -> None:
    before = [entry(by="rule")]
    assert states(Flakes(60, nights(1), True), before=before) == [("muted", "rule")], "it may still be flaky"
    assert states(Flakes(400, nights(1), True), before=before) == []


def test_a_person_decides_until_that_ends() -> None:
    flaky = Flakes(30, nights(5), True)
    assert states(flaky, people=[entry("active")]) == [("active", "person")]
    assert states(flaky, people=[entry("active", days=-1)]) == [("muted", "rule")]
    assert states(Flakes(30, (), False), people=[entry("disabled")]) == [("disabled", "person")]
    assert states(flaky, people=[replace(entry("active"), variant="another")]) == [("muted", "rule")]


def test_the_budget_goes_to_the_flakiest() -> None:
    flakes = {("unit", f"test_{number}"): Flakes(30, nights(3 + number), True) for number in range(4)}
    rules = QuarantineRules(budget=0.02)
    found, over = decide("py3", flakes, [], [], 100, TODAY, rules)
    assert [each.test for each in found] == ["test_2", "test_3"]
    assert [each.test for each in over] == ["test_1", "test_0"]
    found, _ = decide("py3", flakes, [entry(test="another")], [], 100, TODAY, rules)
    assert [each.test for each in found] == ["another", "test_3"], "people's entries count"


def test_an_entry_keeps_its_beginning_while_it_holds() -> None:
    before = [entry(by="rule")]
    [kept], _ = decide("py3", {TEST: Flakes(30, nights(4), True)}, [], before, 1000, TODAY)
    assert (kept.since, kept.expires) == (before[0].since, before[0].expires)
    [anew], _ = decide("py3", {TEST: Flakes(30, nights(4), True)}, [], [entry(by="rule", days=-1)], 1000, TODAY)
    assert (anew.since, anew.expires) == (TODAY, TODAY + timedelta(days=30))


def test_flakes_are_counted_by_their_causes() -> None:
    points = [Point(Build(key, "py3"), key, "u") for key in nights(6)]
    told = {1: (1, 2), 2: (2, 0), 4: (1, 2)}
    grid = make_grid(points, [(night, *TEST, *told.get(night, (0, 1)), "it broke") for night in range(6)], 6)
    flaky = {(f"nightly-{night}", *TEST) for night in (1, 4)}
    assert flakes_of(grid, flaky) == {TEST: Flakes(6, ("nightly-1", "nightly-4"), True)}
    assert flakes_of(grid, {("nightly-1", *TEST), ("nightly-2", *TEST)})[TEST].passes_between is False


def test_the_debt_is_what_would_have_been_hidden() -> None:
    breakages = [(TODAY - timedelta(days=days), f"nightly-{days}", *TEST) for days in (1, 3, 9)]
    [debt] = debt_of([entry()], breakages)
    assert debt.builds == ("nightly-1", "nightly-3")
    assert debt_of([entry("active")], breakages) == []
