from __future__ import annotations

import pytest

from accel_ci.config.scope_settings import Scope, ScopeRule
from accel_ci.scope.apply import NOT_INCLUDED, apply_scope
from accel_ci.scope.table import facts_table

TESTS = ["tests/a.py::test_op[add]", "tests/a.py::test_op[nn.linear]", "tests/b.py::T::test_train", "tests/b.py::test_add"]


@pytest.mark.parametrize(
    ("include", "exclude", "kept", "left_out"),
    [
        (["*"], [], TESTS, {}),
        (["tests/a.py::*"], [], TESTS[:2], {NOT_INCLUDED: 2}),
        (["*[add]"], [], TESTS[:1], {NOT_INCLUDED: 3}),  # brackets are literal, not a character class
        (["*[nn.linea?]"], [], TESTS[1:2], {NOT_INCLUDED: 3}),
        (["*"], [("training", ["*train*"]), ("sums", ["*add*"])], TESTS[1:2], {"training": 1, "sums": 2}),
        (["*"], [("first", ["*add*"]), ("second", ["*"])], [], {"first": 2, "second": 2}),
        (["nothing"], [], [], {NOT_INCLUDED: 4}),
        (["tests.a*"], [], [], {NOT_INCLUDED: 4}),  # a dot is a dot
    ],
)
def test_scope(include: list[str], exclude: list[tuple[str, list[str]]], kept: list[str], left_out: dict[str, int]) -> None:
    rules = tuple(ScopeRule(tests=tuple(tests), reason=reason) for reason, tests in exclude)
    applied = apply_scope("unit", Scope(include=tuple(include), exclude=rules), facts_table(TESTS, {}))
    pairs = zip(TESTS, applied.table["status"].to_pylist(), strict=True)
    assert [test for test, status in pairs if status == "enabled"] == kept
    assert applied.reasons("out_of_scope") == left_out
