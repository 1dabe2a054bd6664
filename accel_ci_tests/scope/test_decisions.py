"""Rules with all criteria: the first that matches decides, as when each rule is tried on each test."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_ci.scope.patterns import matcher
from accel_ci.scope.rules import CRITERIA, Rule, TestIndex, decide
from accel_ci.scope.table import FACTS

ROWS: list[dict[str, Any]] = [
    {
        "test": "test/test_ops.py::TestOpsEMU::test_forward_add_emu_float32", "file": "test/test_ops.py",
        "class_name": "TestOps", "method": "test_forward", "op": "add", "dtypes": ["float32"], "device": "emu",
        "module": None, "markers": [], "decorators": ["onlyNativeDeviceTypes", "skipCPUIf"],
    },
    {
        "test": "test/test_ops.py::TestOpsEMU::test_forward_add_emu_int64", "file": "test/test_ops.py",
        "class_name": "TestOps", "method": "test_forward", "op": "add", "dtypes": ["int64"], "device": "emu",
        "module": None, "markers": [], "decorators": ["onlyCUDA"],
    },
    {
        "test": "test/nn/test_m.py::TestModuleEMU::test_train_nn_Linear_emu_float32", "file": "test/nn/test_m.py",
        "class_name": "TestModule", "method": "test_train", "op": None, "dtypes": ["float32"], "device": "emu",
        "module": "nn.Linear", "markers": ["slow", "training"], "decorators": [],
    },
    {
        "test": "tests/test_a.py::test_p[x::y-1]", "file": "tests/test_a.py", "class_name": None, "method": "test_p",
        "op": None, "dtypes": [], "device": None, "module": None, "markers": ["parametrize"], "decorators": [],
    },
]  # fmt: skip
TABLE = pa.Table.from_pylist(ROWS, schema=FACTS)


@pytest.mark.parametrize(
    ("criteria", "places"),
    [
        ({"tests": ["*test_forward*"]}, [0, 1]),
        ({"files": ["test/nn/*"]}, [2]),
        ({"classes": ["TestOps"]}, [0, 1]),
        ({"classes": ["TestOpsEMU"]}, [0, 1]),
        ({"methods": ["test_forward"]}, [0, 1]),
        ({"methods": ["test_forward_add"]}, [0, 1]),  # without the suffixes of device and dtype
        ({"methods": ["test_forward_add_emu_int64"]}, [1]),
        ({"methods": ["test_p[x::y-1]", "nothing"]}, [3]),
        ({"ops": ["add"], "dtypes": ["int*"]}, [1]),
        ({"modules": ["nn.*"]}, [2]),
        ({"markers": ["training"]}, [2]),
        ({"decorators": ["only*"]}, [0, 1]),
        ({"decorators": ["onlyCUDA"], "dtypes": ["float32"]}, []),
        ({"ops": ["*"]}, [0, 1]),  # a test without an operator has none to match
    ],
)
def test_criteria(criteria: dict[str, list[str]], places: list[int]) -> None:
    rule = Rule("r", {name: tuple(patterns) for name, patterns in criteria.items()})
    decisions = decide([rule], TestIndex(TABLE))
    assert [place for place, number in enumerate(decisions.rules) if number == 0] == places
    assert (decisions.matched, decisions.decided) == ([len(places)], [len(places)])


def test_the_first_rule_decides_among_the_undecided() -> None:
    rules = [Rule("a", {"dtypes": ("int64",)}), Rule("b", {"ops": ("add",)}), Rule("c", {"ops": ("a*",)})]
    decisions = decide(rules, TestIndex(TABLE))
    assert (decisions.rules, decisions.matched, decisions.decided) == ([1, 0, -1, -1], [1, 2, 2], [1, 1, 0])
    decisions = decide(rules, TestIndex(TABLE), among=[1, 2])
    assert (decisions.rules, decisions.decided) == ([-1, 0, -1, -1], [1, 0, 0])


VALUES = sorted({value for name in CRITERIA for values in TestIndex(TABLE).values(name) for value in values})
PATTERN = st.one_of(st.sampled_from(VALUES), st.sampled_from(VALUES).map(lambda value: f"*{value[2:-2]}*"), st.just("*"))
CRITERIA_OF_A_RULE = st.dictionaries(
    st.sampled_from(CRITERIA), st.lists(PATTERN, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3
)


@given(st.lists(CRITERIA_OF_A_RULE, max_size=6))
def test_as_each_rule_tried_on_each_test(criteria: list[dict[str, tuple[str, ...]]]) -> None:
    tests = TestIndex(TABLE)

    def holds(rule: dict[str, tuple[str, ...]], place: int) -> bool:
        return all(
            any(matcher(pattern)(value) for pattern in patterns for value in tests.values(name)[place])
            for name, patterns in rule.items()
        )

    expected = [next((n for n, rule in enumerate(criteria) if holds(rule, place)), -1) for place in range(len(tests))]
    decisions = decide([Rule(str(number), rule) for number, rule in enumerate(criteria)], tests)
    assert list(decisions.rules) == expected
    assert list(decisions.matched) == [sum(holds(rule, place) for place in range(len(tests))) for rule in criteria]
