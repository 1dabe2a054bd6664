"""Plans: every test once, large batches first, and the bound that no schedule can beat."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_ci.model import Batch, SelectedTest
from accel_ci.plan.guided import Plan, lower_bound, make_plan
from accel_ci.runner.choice import Choice, FreeBatches
from accel_ci.runner.round_folder import PlannedBatch


def some_tests(**files: int) -> list[SelectedTest]:
    return [SelectedTest("suite", f"{file}.py::test_{n}") for file, count in files.items() for n in range(count)]


def sizes(batches: Sequence[Batch]) -> list[tuple[str, int]]:
    return [(batch.file, len(batch.tests)) for batch in batches]


@pytest.mark.parametrize(
    ("durations", "cards", "expected"),
    [([], 4, 0.0), ([3.0], 4, 3.0), ([1.0] * 8, 4, 2.0), ([5.0, 1.0, 1.0], 2, 5.0), ([1.0, 2.0], 1, 3.0)],
)
def test_lower_bound(durations: list[float], cards: int, expected: float) -> None:
    assert lower_bound(durations, cards) == expected


def test_tests_of_several_cards_have_separate_batches_and_bounds() -> None:
    tests = [*some_tests(a=8), *(SelectedTest("wide", f"b.py::test_{n}") for n in range(4))]
    plan = make_plan(tests, {(test.suite, test.test): 1.0 for test in tests}, 4, widths={"wide": 2})
    assert {batch.suite: batch.cards for batch in plan.batches} == {"suite": 1, "wide": 2}
    assert plan.lower_bound_s == (8 + 2 * 4) / 4
    assert lower_bound([3.0, 1.0], 4, [4, 1]) == 13 / 4


def grouped(group: str | None, *tests: str) -> list[SelectedTest]:
    return [SelectedTest("suite", test, group) for test in tests]


def test_a_group_has_a_batch_of_its_own_whatever_its_files_and_length() -> None:
    port = grouped("port", "a.py::t1", "b.py::t1", "b.py::t3")
    tests = [port[0], *grouped(None, "a.py::t2"), port[1], *grouped(None, "b.py::t2"), port[2]]
    durations = {("suite", test.test): 30.0 for test in tests}
    plan = make_plan(tests, durations, cards=4)
    [batch] = [batch for batch in plan.batches if batch.group == "port"]
    assert (batch.file, batch.tests) == ("a.py", ("a.py::t1", "b.py::t1", "b.py::t3"))
    assert plan.lower_bound_s == 90.0, "no schedule can spread a group over cards"
    assert {batch.tests for batch in plan.batches if batch.group is None} == {("a.py::t2",), ("b.py::t2",)}


def test_groups_of_one_name_in_two_suites_are_two() -> None:
    tests = [SelectedTest(suite, f"a.py::t{number}", "port") for suite in ("one", "two") for number in (1, 2)]
    plan = make_plan(tests, {}, cards=2)
    assert sorted((batch.suite, batch.tests) for batch in plan.batches) == [
        ("one", ("a.py::t1", "a.py::t2")), ("two", ("a.py::t1", "a.py::t2")),
    ]  # fmt: skip


def test_one_card_runs_whole_files_in_order() -> None:
    tests = grouped(None, "b.py::t1", "b.py::t2") + grouped("last", "b.py::t3") + grouped(None, "a.py::t1", "b.py::t4")
    durations = {("suite", test.test): float(number) for number, test in enumerate(tests)}
    plan = make_plan(tests, durations, cards=1)
    assert [batch.tests for batch in plan.batches] == [
        ("b.py::t1", "b.py::t2", "b.py::t4"), ("b.py::t3",), ("a.py::t1",),
    ]  # fmt: skip
    assert plan.urgent == len(plan.batches), "urgent batches run in the order of the plan"


@pytest.mark.parametrize(
    ("scope", "count", "seconds", "whole"),
    [
        ("a.py::TestA::", 3, 1.0, True), ("a.py::TestA::", 16, 3.0, True), ("a.py::TestA::", 17, 1.0, False),
        ("a.py::TestA::", 16, 4.0, False), ("a.py::", 16, 1.0, True), ("a.py::", 17, 0.5, False), ("a.py::", 9, 2.0, False),
    ],
)  # fmt: skip
def test_small_files_and_classes_are_not_cut(scope: str, count: int, seconds: float, whole: bool) -> None:
    names = [f"{scope}test_{number}[x::y]" for number in range(count)]
    tests = [*grouped(None, *names), *some_tests(b=4)]
    plan = make_plan(tests, {("suite", test.test): seconds for test in tests}, cards=2)
    of_scope = [batch.tests for batch in plan.batches if batch.file == "a.py"]
    assert (of_scope == [tuple(names)]) == whole
    assert sorted(test for tests in of_scope for test in tests) == sorted(names)


def test_a_small_file_in_a_long_plan_is_not_cut() -> None:
    tests = some_tests(a=16, b=400)
    plan = make_plan(tests, {("suite", test.test): 10.0 for test in tests}, cards=2)  # 2,080 s for each card
    assert sizes([batch for batch in plan.batches if batch.file == "a.py"]) == [("a.py", 16)]


def test_a_small_class_of_a_large_file_that_was_never_seen_is_not_cut() -> None:
    names = [f"a.py::TestA::test_{number}" for number in range(4)]
    plan = make_plan([*some_tests(a=20), *grouped(None, *names)], {}, cards=4)
    assert any(set(names) <= set(batch.tests) for batch in plan.batches)


def test_groups_of_one_name_in_two_suites_are_two_groups() -> None:
    tests = [SelectedTest(suite, f"{suite}.py::t{number}", "port") for number in range(3) for suite in ("ops", "jit")]
    for cards in (1, 2):
        batches = make_plan(tests, {}, cards).batches
        assert {(batch.suite, batch.group, batch.tests) for batch in batches} == {
            (suite, "port", tuple(f"{suite}.py::t{number}" for number in range(3))) for suite in ("ops", "jit")
        }


@given(
    files=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    cards=st.integers(1, 64),
    known=st.floats(0, 1),
    in_group=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_every_test_is_in_one_batch_of_its_file_or_group(
    files: list[int], cards: int, known: float, in_group: float, seed: int
) -> None:
    rng = random.Random(seed)
    tests = [
        SelectedTest(
            "suite", f"f{file}.py::T{rng.randrange(3)}::test_{n}", rng.choice("xyz") if rng.random() < in_group else None
        )
        for file, count in enumerate(files)
        for n in range(count)
    ]
    durations = {(test.suite, test.test): rng.expovariate(1) for test in tests if rng.random() < known}
    plan = make_plan(tests, durations, cards)
    planned = [test for batch in plan.batches for test in batch.tests]
    assert sorted(planned) == sorted(test.test for test in tests)
    assert len({batch.id for batch in plan.batches}) == len(plan.batches)
    assert plan.unknown == len(tests) - len(durations)
    assert plan.estimated_s == pytest.approx(sum(batch.estimate_s for batch in plan.batches))
    order = {test.test: place for place, test in enumerate(tests)}
    groups = {test.test: test.group for test in tests}
    for batch in plan.batches:
        files_of = {test.split("::")[0] for test in batch.tests}
        assert batch.file in files_of if batch.group is not None else files_of == {batch.file}
        assert {groups[test] for test in batch.tests} == {batch.group}
        assert sorted(batch.tests, key=order.__getitem__) == list(batch.tests)
    named = [batch.group for batch in plan.batches if batch.group is not None]
    assert len(named) == len(set(named))


def test_batches_shrink_as_the_work_runs_out() -> None:
    tests = some_tests(a=600)
    plan = make_plan(tests, {(test.suite, test.test): 0.1 for test in tests}, cards=2)
    counts = [len(batch.tests) for batch in plan.batches]
    assert counts[:-3] == sorted(counts[:-3], reverse=True)
    assert counts[0] == 100  # a third of a card's share
    assert counts[-1] <= 3
    assert plan.lower_bound_s == pytest.approx(30)
    assert plan.urgent == 0


def test_long_and_never_seen_tests_go_first() -> None:
    tests = some_tests(a=20, b=20)
    durations = {(test.suite, test.test): 1.0 for test in tests}
    durations["suite", "b.py::test_7"] = 30.0
    durations["suite", "a.py::test_3"] = 20.0
    del durations["suite", "b.py::test_9"]
    plan = make_plan(tests, durations, cards=2)
    assert plan.urgent == 3
    assert [batch.tests for batch in plan.batches[:3]] == [("b.py::test_7",), ("a.py::test_3",), ("b.py::test_9",)]
    assert plan.unknown == 1


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ({}, 1.0),
        ({("suite", "b.py::test_0"): 4.0}, 4.0),
        ({("suite", "b.py::test_0"): 4.0, ("suite", "a.py::test_1"): 2.0, ("suite", "a.py::test_2"): 2.0}, 2.0),
        ({("other", "a.py::test_0"): 9.0}, 1.0),
    ],
)
def test_an_unknown_test_is_estimated_by_its_file_else_its_suite(
    durations: dict[tuple[str, str], float], expected: float
) -> None:
    plan = make_plan(some_tests(a=4, b=1), durations, cards=100)
    [batch] = [batch for batch in plan.batches if "a.py::test_0" in batch.tests]
    assert batch.estimate_s / len(batch.tests) == expected


def test_a_long_test_is_in_the_first_batch_of_its_file_and_small_files_end_in_small_batches() -> None:
    tests = some_tests(a=100, b=1000)
    durations = {(test.suite, test.test): 1.0 for test in tests}
    durations["suite", "a.py::test_70"] = 12.0
    plan = make_plan(tests, durations, cards=10)
    assert plan.urgent == 0
    of_a = [batch for batch in plan.batches if batch.file == "a.py"]
    assert of_a[0].tests[:2] == ("a.py::test_0", "a.py::test_1")
    assert of_a[0].tests[-1] == "a.py::test_70"
    assert of_a[0].estimate_s > 30  # a third of the file, which is within a card's share
    assert of_a[-1].estimate_s == 1


def test_batches_are_not_much_shorter_than_collection() -> None:
    tests = some_tests(a=1000)
    durations = {(test.suite, test.test): 0.1 for test in tests}
    plan = make_plan(tests, durations, cards=50, collect_s=8.0)
    assert min(batch.estimate_s for batch in plan.batches) >= 1.0


def test_small_tests_share_a_batch_at_the_tail() -> None:
    tests = some_tests(a=1000)
    plan = make_plan(tests, {(test.suite, test.test): 0.001 for test in tests}, cards=8)
    assert len(plan.batches) <= 4


@pytest.mark.parametrize("cards", [0, -1])
def test_a_plan_needs_cards(cards: int) -> None:
    with pytest.raises(ValueError, match="at least one card"):
        make_plan(some_tests(a=1), {}, cards)


def test_an_empty_plan() -> None:
    assert make_plan([], {}, 4).batches == ()


def affected(plan: Plan, first: set[tuple[str, str]]) -> list[bool]:
    return [any((batch.suite, test) in first for test in batch.tests) for batch in plan.batches]


@given(
    files=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    cards=st.integers(1, 16),
    share=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_tests_to_run_first_are_taken_before_all_others(files: list[int], cards: int, share: float, seed: int) -> None:
    rng = random.Random(seed)
    tests = [
        SelectedTest(f"s{file % 2}", f"f{file}.py::T{rng.randrange(3)}::test_{n}", "g" if rng.random() < 0.1 else None)
        for file, count in enumerate(files)
        for n in range(count)
    ]
    durations = {(test.suite, test.test): rng.expovariate(0.1) for test in tests if rng.random() < 0.8}
    first = {(test.suite, test.test) for test in tests if rng.random() < share}
    plan = make_plan(tests, durations, cards, first=first)
    assert sorted(test for batch in plan.batches for test in batch.tests) == sorted(test.test for test in tests)
    flags = affected(plan, first)
    count = sum(flags)
    assert flags == [True] * count + [False] * (len(flags) - count)
    assert plan.urgent >= count, "workers take urgent batches before all others, in their order"
    if cards > 1:
        estimates = [batch.estimate_s for batch in plan.batches[:count]]
        assert estimates == sorted(estimates, reverse=True)
    assert plan.lower_bound_s == make_plan(tests, durations, cards).lower_bound_s


def test_the_first_tests_share_all_cards_and_keep_their_small_file() -> None:
    tests = some_tests(a=400, b=400, c=4)
    durations = {(test.suite, test.test): 1.0 for test in tests}
    first = {*(("suite", f"a.py::test_{n}") for n in range(100, 200)), ("suite", "c.py::test_2")}
    plan = make_plan(tests, durations, 4, first=first)
    flags = affected(plan, first)
    early = plan.batches[: sum(flags)]
    assert max(batch.estimate_s for batch in early) <= 104 / 4, "no card has more than its share of them"
    assert {test for batch in early for test in batch.tests} == {
        *(test for suite, test in first),
        *(f"c.py::test_{n}" for n in range(4)),
    }, "a small file is not cut"
    free = FreeBatches(PlannedBatch(b.id, b.suite, b.file, b.tests, b.estimate_s, (), n < plan.urgent)
                       for n, b in enumerate(plan.batches))  # fmt: skip
    choice, taken = Choice(free, 0), list[str]()
    while (batch := choice.next("suite")) is not None:
        choice.record(batch, True)
        free.remove(batch.id, "w")
        taken.append(batch.id)
    assert taken[: len(early)] == [batch.id for batch in early]


def test_one_card_runs_the_files_of_the_first_tests_before_the_others() -> None:
    tests = grouped(None, "a.py::t1", "b.py::t1", "b.py::t2", "c.py::t1")
    plan = make_plan(tests, {}, 1, first={("suite", "b.py::t2"), ("suite", "c.py::t1")})
    assert [batch.tests for batch in plan.batches] == [("b.py::t1", "b.py::t2"), ("c.py::t1",), ("a.py::t1",)]
