from __future__ import annotations

import pytest

from accel_ci.config.settings import Scope, ScopeRule
from accel_ci.scope.selection import NOT_INCLUDED, in_scope

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
    assert in_scope(TESTS, Scope(include=tuple(include), exclude=rules)) == (tuple(kept), left_out)
