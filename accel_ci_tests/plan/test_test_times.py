"""Files of test times in PyTorch's formats, and the first estimates that a plan takes from them."""

from __future__ import annotations

from typing import Any

import pytest

from accel_ci.model import SelectedTest
from accel_ci.plan.guided import make_plan
from accel_ci.plan.test_times import parse_test_times, seconds_per_test


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"test_ops": 60, "nn/test_pooling.py": 1.5}, {"test_ops": 60.0, "nn/test_pooling": 1.5}),
        ({"linux": {"test_ops": 10.0}, "mac": {"test_ops": 30.0, "test_nn": 1.0}}, {"test_ops": 20.0, "test_nn": 1.0}),
        ({"linux": {"test_ops": 10.0}, "default": {"test_ops": 7.0}}, {"test_ops": 7.0}),
        ({"default": {"default": {"test_ops": 7.0}, "emu": {"test_ops": 9.0}}}, {"test_ops": 9.0}),
        ({"a": {"default": {"test_ops": 7.0}}, "b": {"other": {"test_ops": 9.0}}}, {"test_ops": 8.0}),
    ],
)
def test_times_are_read_from_all_forms(content: Any, expected: dict[str, float]) -> None:
    assert parse_test_times(content, "emu") == expected


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        ([], "it is no JSON object"),
        ({}, "it names no file"),
        ({"default": {}}, "it names no file"),
        ({"test_ops": "1"}, "'test_ops': '1' is no number of seconds"),
        ({"test_ops": True}, "'test_ops': True is no number of seconds"),
        ({"test_ops": -1}, "'test_ops': -1 is no number of seconds"),
        ({"test_ops": float("nan")}, "'test_ops': nan is no number of seconds"),
        ({"test_ops": 1, "default": {"test_ops": 1}}, "'default': {'test_ops': 1} is no number of seconds"),
        ({"a": {"b": {"C": {"test": 1}}}}, "'a': 'b': 'C': {'test': 1} is no number of seconds"),
    ],
)
def test_mistakes_are_named_with_their_place(content: Any, mistake: str) -> None:
    with pytest.raises(ValueError, match=r"the file has \{file: seconds\}") as raised:
        parse_test_times(content, "emu")
    assert str(raised.value).startswith(mistake)


def test_the_time_of_a_file_is_spread_over_its_tests_until_some_have_run() -> None:
    new, known, other = "upstream/test/nn/test_new.py", "upstream/test/test_known.py", "upstream/test/test_other.py"
    times = {"nn/test_new": 60.0, "test_known": 600.0}
    collected = [*[("unit", new)] * 20, *[("unit", known)] * 2, ("unit", other)]
    estimates = seconds_per_test(times, collected)
    assert estimates == {("unit", new): 3.0, ("unit", known): 300.0}
    tests = [SelectedTest("unit", f"{file}::test_{number}") for file in (new, known, other) for number in range(2)]
    plan = make_plan(tests, {("unit", f"{known}::test_0"): 5.0}, cards=1, first_estimates=estimates)
    assert {batch.file: batch.estimate_s for batch in plan.batches} == {new: 6.0, known: 10.0, other: 10.0}
    assert plan.unknown == 5
