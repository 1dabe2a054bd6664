"""Rules in files of their own: they come after those of the configuration, under names that tell their file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.scope_settings import Scope
from accel_ci.errors import ConfigError
from accel_ci.scope.apply import apply_scope
from accel_ci.scope.rule_files import whole_scope
from accel_ci.scope.table import facts_table


def scope(**sections: Any) -> Scope:
    return Scope.model_validate(sections)


def test_rules_of_files_follow_under_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("exclude: [{tests: [a], reason: x}, {tests: [b], reason: y, name: own}]\n")
    (tmp_path / "b.json").write_text('{"modes": [{"ops": ["c"], "mode": "skip"}], "enabled": ["t*"]}')
    (tmp_path / "on.yaml").write_text("enabled: ['u*', {ops: [mul]}]\n")
    here = scope(exclude=[{"tests": ["z"], "reason": "z"}], rule_files=["a.yaml", "b.json"], enabled_file="on.yaml")
    whole = whole_scope(here, tmp_path)
    assert [rule.name for rule in whole.exclude] == [None, "a.yaml:exclude[0]", "own"]
    assert [rule.name for rule in whole.modes] == ["b.json:modes[0]"]
    assert [(rule.name, rule.criteria) for rule in whole.enabled or ()] == [
        ("b.json:enabled[0]", {"tests": ("t*",)}), ("on.yaml:enabled[0]", {"tests": ("u*",)}),
        ("on.yaml:enabled[1]", {"ops": ("mul",)}),
    ]  # fmt: skip
    applied = apply_scope("s", whole, facts_table(["t::1", "z", "b"], {}))
    assert applied.table["rule"].to_pylist() == ["b.json:enabled[0]", "exclude[0]", "own"]


def test_a_scope_without_files_is_the_same(tmp_path: Path) -> None:
    here = scope(enabled=["x"])
    assert whole_scope(here, tmp_path) is here


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", r"f\.yaml:1: must be a mapping with keys such as 'enabled'"),
        ("enabled: [", r"f\.yaml:\d: not YAML"),
        ("enabled: []\nenabled: [a]\n", r"f\.yaml:2: enabled: appears twice"),
        ("exclude: []\nenabled: []\n", r"f\.yaml:1: exclude: unknown key"),
        ("enabled:\n- ''\n", r"f\.yaml:2: enabled\[0\]"),
        ("enabled:\n- {ops: []}\n", r"f\.yaml:2: enabled\[0\]\.ops: needs at least 1 entry"),
        ("enabled:\n- {name: x}\n", r"f\.yaml:2: enabled\[0\]: needs a criterion"),
        ("enabled:\n- {op: [x]}\n", r"f\.yaml:2: enabled\[0\]\.op: unknown key; did you mean 'ops'"),
    ],
)
def test_mistakes_are_told_by_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        whole_scope(scope(enabled_file="f.yaml"), tmp_path)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.yaml", "-x"])
def test_files_lie_beside_the_configuration(path: str) -> None:
    with pytest.raises(ValueError, match="must be a path below the folder of the configuration file"):
        scope(rule_files=[path])
