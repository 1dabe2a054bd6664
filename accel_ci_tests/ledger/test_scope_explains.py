"""Tests that a build does not run any more: those that a rule of the scope names, by whatever it asks, have a reason."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from pydantic import TypeAdapter

from accel_ci.config.scope_settings import Scope
from accel_ci.config.settings import Project
from accel_ci.ledger.completeness import judge_completeness
from accel_ci.model import (
    VERDICTS,
    Build,
    DeviceTestResults,
    Ledger,
    Revision,
    SelectedTest,
    Source,
    SuiteSelection,
    TestSelection,
)
from accel_ci.scope.apply import apply_scope
from accel_ci.scope.selection import read_selection
from accel_ci.scope.table import facts_table, write_scope
from accel_ci.workspace import Workspace

BEFORE, NOW = Build("nightly-20261127", "py3"), Build("nightly-20261128", "py3")
OPS = ("add", "mul", "sub", "div")


def keep_build(workspace: Workspace, build: Build, ops: list[str], enabled: list[str]) -> Revision:
    """Keep the manifests of a build that has collected a test of each operator, and ran those of the enabled ones."""
    manifests, artifacts, nowhere = workspace.manifests, workspace.artifacts, Source("no-repository", "HEAD", "0" * 40)
    revision = Revision(build.revision, "nightly", datetime.now(timezone.utc), nowhere, nowhere)
    facts = facts_table([f"t/a.py::test[{op}]" for op in ops], {"op": (ops, list(range(len(ops))))})
    ran = [SelectedTest("unit", f"t/a.py::test[{op}]") for op in enabled]
    expected = artifacts.put_bytes(TypeAdapter(list[SelectedTest]).dump_json(ran), "selection.json")
    scope = write_scope(apply_scope("unit", Scope(), facts).table, artifacts)
    counts = dict.fromkeys(VERDICTS, 0) | {"passed": len(ran)}
    written: dict[str, Any] = {
        "test_selection": TestSelection(expected, (SuiteSelection("unit", len(ops), len(ran), {}),), 0.0, scope),
        "device_test_results": DeviceTestResults(expected, ("unit",), {"passed": len(ran)}, (), (), 0.0, 0.0, 0.0),
        "ledger": Ledger(build, len(ran), counts, {"unit": counts}, (), (), 0, 0.0, 0.0),
    }
    manifests.write(manifests.path("revision", build.revision), revision)
    for stage, manifest in written.items():
        manifests.write(manifests.path(stage, build.revision, build.variant), manifest)
    return revision


@pytest.mark.parametrize(
    ("scope", "collected", "vanished"),
    [
        ({}, ["add"], ["div", "mul", "sub"]),
        ({"exclude": [{"ops": ["mul"], "reason": "unsupported_op"}]}, list(OPS), ["div", "sub"]),
        (
            {"not_enabled": [{"ops": ["mul"], "reason": "not_implemented"}]},
            ["add"],
            ["div", "sub"],
        ),  # not collected any more
        ({"enabled": [{"ops": ["add", "sub"]}]}, ["add"], ["sub"]),
        ({"modes": [{"ops": ["mul"], "mode": "skip"}]}, list(OPS), ["div", "mul", "sub"]),  # these run
    ],
)
def test_a_rule_by_operator_explains(
    scope: dict[str, Any], collected: list[str], vanished: list[str], make_project: Callable[..., Project]
) -> None:
    suites = {"smoke": {"stage": "smoke", "paths": ["s"]}, "unit": {"paths": ["t"], "scope": scope}}
    workspace = Workspace(make_project(suites=suites))
    keep_build(workspace, BEFORE, list(OPS), list(OPS))
    revision = keep_build(workspace, NOW, collected, ["add"])
    account = workspace.manifests.read(workspace.manifests.path("ledger", NOW.revision, NOW.variant), Ledger)
    judged = judge_completeness(workspace, revision, account)
    gone = read_selection(judged.vanished, workspace.artifacts) if judged.vanished else []
    assert [test.test for test in gone] == [f"t/a.py::test[{op}]" for op in vanished]
