"""A scope applied to tests: status, reason, rule and mode of each, and counts that sum to the collected tests."""

from __future__ import annotations

from typing import Any

import pytest

from accel_ci.config.scope_settings import Scope
from accel_ci.scope.apply import NOT_ENABLED, NOT_INCLUDED, apply_scope, matching_rules
from accel_ci.scope.table import facts_table, read_scope, write_scope
from accel_ci.storage.artifacts import ArtifactStore

TESTS = ["t/a.py::test_0", "t/a.py::test_1", "t/a.py::test_2", "t/a.py::test_3", "u/b.py::test_4"]
FACTS = facts_table(TESTS, {"op": (["add", "mul"], [0, 1, 0, -1, 1]), "dtypes": ([["float32"]], [0, -1, -1, -1, 0])})


def scope(**sections: Any) -> Scope:
    return Scope.model_validate(sections)


def rows(settings: Scope) -> list[tuple[Any, ...]]:
    table = apply_scope("unit", settings, FACTS).table
    return list(zip(*(table[name].to_pylist() for name in ("status", "reason", "rule", "mode")), strict=True))


ENABLED = ("enabled", None, None, "must_pass")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (scope(), [ENABLED] * 5),
        (scope(include=["t/*"]), [*[ENABLED] * 4, ("out_of_scope", NOT_INCLUDED, "include", "must_pass")]),
        (
            scope(exclude=[{"ops": ["add"], "reason": "unsupported_op"}, {"tests": ["*_3"], "reason": "mine", "name": "n"}]),
            [
                ("out_of_scope", "unsupported_op", "exclude[0]", "must_pass"), ENABLED,
                ("out_of_scope", "unsupported_op", "exclude[0]", "must_pass"), ("out_of_scope", "mine", "n", "must_pass"),
                ENABLED,
            ],
        ),
        (
            scope(not_enabled=[{"ops": ["mul"], "reason": "not_implemented"}]),
            [ENABLED, later := ("not_enabled", "not_implemented", "not_enabled[0]", "must_pass"), ENABLED, ENABLED, later],
        ),
        (
            scope(enabled=["*_0", {"ops": ["mul"]}], not_enabled=[{"tests": ["u/*"], "reason": "too_slow"}]),
            [
                ("enabled", None, "enabled[0]", "must_pass"), ("enabled", None, "enabled[1]", "must_pass"),
                other := ("not_enabled", NOT_ENABLED, "enabled", "must_pass"), other,
                ("not_enabled", "too_slow", "not_enabled[0]", "must_pass"),
            ],
        ),
        (scope(enabled=[]), [("not_enabled", NOT_ENABLED, "enabled", "must_pass")] * 5),
        (
            scope(
                exclude=[{"tests": ["*_0"], "reason": "training"}],
                modes=[
                    {"ops": ["add"], "mode": "xfail", "reason": "upstream_bug", "text": "t", "issue": "https://x.example/1"},
                    {"tests": ["t/*"], "mode": "skip"},
                ],
            ),
            [
                ("out_of_scope", "training", "exclude[0]", "must_pass"),
                skip := ("enabled", "expected by a rule", "modes[1]", "skip"),
                ("enabled", "upstream_bug: t (https://x.example/1)", "modes[0]", "xfail"), skip, ENABLED,
            ],
        ),
    ],
)  # fmt: skip
def test_statuses(settings: Scope, expected: list[tuple[Any, ...]]) -> None:
    assert rows(settings) == expected


def test_counts_sum_to_the_collected_tests_and_rules_tell_what_they_did() -> None:
    settings = scope(
        include=["t/*"],
        exclude=[{"ops": ["add"], "reason": "training"}, {"ops": ["add", "none"], "reason": "other_device"}],
        not_enabled=[{"tests": ["*_1"], "reason": "too_slow"}], modes=[{"ops": ["none"], "mode": "skip"}],
    )  # fmt: skip
    applied = apply_scope("unit", settings, FACTS)
    left_out, later = applied.reasons("out_of_scope"), applied.reasons("not_enabled")
    assert (left_out, later) == ({"training": 2, NOT_INCLUDED: 1}, {"too_slow": 1})
    enabled = applied.table["status"].to_pylist().count("enabled")
    assert enabled + sum(left_out.values()) + sum(later.values()) == len(TESTS)
    assert [(each.name, each.matched, each.decided) for each in applied.rules] == [
        ("include[0]", 4, 4), ("exclude[0]", 2, 2), ("exclude[1]", 2, 0), ("not_enabled[0]", 1, 1), ("modes[0]", 0, 0),
    ]  # fmt: skip
    assert [name for name, _ in matching_rules(settings, FACTS.slice(0, 1))] == ["exclude[0]", "exclude[1]"]


def test_tolerances_decide_no_test_and_tell_which_have_them() -> None:
    first = {"ops": ["a*"], "dtypes": ["float32"], "atol": 0.01, "rtol": 0, "reason": "upstream_bug", "text": "sums"}
    every = {"ops": ["*"], "atol": 1, "rtol": 1, "reason": "mine"}
    settings = scope(tolerances=[first, every, {**every, "ops": ["gone"], "name": "n"}])
    applied = apply_scope("unit", settings, FACTS)
    assert rows(settings) == [ENABLED] * 5
    assert [(each.rule, each.tests, each.atol, each.reason) for each in applied.tolerances] == [
        ("tolerances[0]", 1, 0.01, "upstream_bug: sums"), ("tolerances[1]", 3, 1.0, "mine"), ("n", 0, 1.0, "mine"),
    ]  # fmt: skip
    assert [(each.name, each.kind, each.matched, each.decided) for each in applied.rules[1:]] == [
        ("tolerances[0]", "tolerances", 1, 1), ("tolerances[1]", "tolerances", 4, 3), ("n", "tolerances", 0, 0),
    ]  # fmt: skip
    assert [name for name, _ in matching_rules(settings, FACTS.slice(0, 1))] == ["tolerances[0]", "tolerances[1]"]


def test_the_table_is_kept(tmp_path: Any) -> None:
    artifacts, table = ArtifactStore(tmp_path), apply_scope("unit", scope(), FACTS).table
    kept = read_scope(write_scope(table, artifacts), artifacts)
    assert kept.to_pylist() == table.to_pylist()
    assert kept.to_pylist()[0] == {
        "suite": "unit", "test": "t/a.py::test_0", "file": "t/a.py", "class_name": None, "method": None, "op": "add",
        "dtypes": ["float32"], "device": None, "module": None, "markers": [], "decorators": [], "group": None,
        "status": "enabled", "reason": None, "rule": None, "mode": "must_pass",
    }  # fmt: skip


@pytest.mark.parametrize("of", [[0], [0, 0, 0, 0, 2], [0, 0, 0, 0, -2]])
def test_facts_of_other_tests_are_refused(of: list[int]) -> None:
    with pytest.raises(ValueError, match="are not those of 5 tests"):
        facts_table(TESTS, {"op": (["add"], of)})
