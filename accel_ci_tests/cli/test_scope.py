"""`accel-ci scope`: a build's tests by status and reason, the rules to look at, and rules from other projects."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

from accel_ci.config.settings import Project
from accel_ci.model import Build, Revision, Source
from accel_ci.pool.choose_pool import worker_spec_for
from accel_ci.progress import LineProgress
from accel_ci.scope.modes import with_modes
from accel_ci.scope.rule_files import with_rule_files
from accel_ci.steps.device_tests import collect_tests, plan_device_tests, run_device_stage
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.project import Run
from accel_ci_tests.fixtures.stages import IMAGE

BUILD = Build("manual-scope", "py3")
SUITE = """
import pytest
@pytest.mark.parametrize("op", ["add", "mul", "sub"])
def test_op(op): assert op != "mul"
def test_training(): pass
def test_cuda(): pass
def test_slow(): pass
def test_flaky(): assert 0
def test_known(): pass
"""
SCOPE = {
    "exclude": [{"tests": ["*training*"], "reason": "training"}, {"ops": ["gone"], "reason": "unsupported_op"}],
    "not_enabled": [{"methods": ["test_slow"], "reason": "too_slow"}],
    "modes": [
        {"ops": ["mul"], "mode": "xfail", "reason": "not_implemented", "issue": "https://x.example/7"},
        {"methods": ["test_known"], "mode": "xfail", "reason": "upstream_bug"},
        {"methods": ["test_flaky"], "mode": "flaky_known", "reason": "upstream_bug"},
    ],
    "rule_files": ["rules.yaml"],
}
FILE = {"exclude": [{"methods": ["test_cuda"], "reason": "other_device"}, {"tests": ["*training"], "reason": "training"}]}


@pytest.fixture
def built(make_project: Callable[..., Project], root: Path, tmp_path: Path) -> Project:
    """A project with a build whose suite has tests of each status."""
    (root / "tests/unit").mkdir(parents=True)
    (root / "tests/unit/test_a.py").write_text(SUITE)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(FILE))
    suites = {"smoke": {"stage": "smoke", "paths": ["tests"]}, "unit": {"paths": ["tests/unit"], "scope": SCOPE}}
    project = make_project(pool={"cards": 1, "card_environment": "TOY_CARD", "rounds": 1}, suites=suites)
    settings, manifests = project.settings, ManifestStore(project.home)
    nowhere = Source("repository", "HEAD", None)
    revision = Revision(
        BUILD.revision, "manual", datetime.now(timezone.utc), nowhere, replace(nowhere, repository="upstream")
    )
    manifests.write(manifests.path("revision", BUILD.revision), revision)
    context = Workspace(project).stage_context(revision, BUILD.variant, "device")
    spec = worker_spec_for(settings, IMAGE, root)
    selection = collect_tests(settings, with_rule_files({"unit": settings.suites["unit"]}, project.root), spec, context)
    manifests.write(manifests.path("test_selection", BUILD.revision, BUILD.variant), selection)
    plan = plan_device_tests(settings, selection, {}, context.artifacts)
    spec = with_modes(spec, selection.scope, context.artifacts)
    with LineProgress().step("device") as step:
        results = run_device_stage(settings, selection.tests, ["unit"], plan, spec, context, step)
    assert results.counts == {"passed": 2, "xfailed": 2, "xpassed": 1}
    [suite] = selection.suites
    assert (suite.collected, suite.in_scope, suite.selected) == (8, 6, 5)
    assert (suite.out_of_scope, suite.not_enabled) == ({"training": 1, "other_device": 1}, {"too_slow": 1})
    return project


def test_the_report_counts_and_names_rules(accel_ci: Run, built: Project) -> None:
    report: dict[str, Any] = json.loads(accel_ci("scope", "report", "--json").stdout)
    assert report["suites"] == [
        {
            "suite": "unit", "collected": 8, "in_scope": 6, "enabled": 5,
            "out_of_scope": {"training": 1, "other_device": 1}, "not_enabled": {"too_slow": 1},
            "modes": {"must_pass": 2, "xfail": 2, "flaky_known": 1}, "tolerances": [],
        }
    ]  # fmt: skip
    assert [(each["rule"], each["tests"], each["finding"]) for each in report["findings"]] == [
        ("exclude[1]", 0, "matches no collected test"),
        ("rules.yaml:exclude[1]", 1, "decides none of the tests that it matches: earlier rules do"),
        ("modes[1]", 1, "all of its tests pass"),
    ]
    text = accel_ci("scope", "report", BUILD.name).stdout
    assert "too_slow" in text
    assert "rules.yaml:exclude[1]" in text


def test_a_test_is_explained(accel_ci: Run, built: Project) -> None:
    [found] = json.loads(accel_ci("scope", "explain", "test_op[mul]", "--json").stdout)
    assert (found["status"], found["mode"], found["rule"]) == ("enabled", "xfail", "modes[0]")
    assert found["reason"] == "not_implemented (https://x.example/7)"
    assert found["facts"] == {"method": "test_op", "op": "mul", "markers": ["parametrize"]}
    text = accel_ci("scope", "explain", "training").stdout
    assert "out_of_scope by exclude[0]: training" in text
    assert "rules.yaml:exclude[1]: training" in text
    missing = accel_ci("scope", "explain", "no_such_test")
    assert missing.returncode != 0
    assert "has collected no test whose id contains 'no_such_test'" in missing.stderr


def test_the_messages_tell_rules_from_the_tests_own(built: Project) -> None:
    store = Workspace(built).results
    [stored] = store.suites(build=BUILD)
    rows = {row["test"].partition("::")[2]: row["message"] for row in store.read(stored, ["test", "message"]).to_pylist()}
    assert rows["test_op[mul]"] == "accel_ci rule: modes[0]: not_implemented (https://x.example/7)"


def test_mistakes_in_rule_files_are_told_by_line(
    accel_ci: Run, make_project: Callable[..., Project], tmp_path: Path
) -> None:
    suites = {"smoke": {"stage": "smoke", "paths": ["."]}, "unit": {"paths": ["."], "scope": {"rule_files": ["r.yaml"]}}}
    make_project(suites=suites)
    assert "r.yaml: cannot be read" in accel_ci("validate").stderr
    (tmp_path / "r.yaml").write_text(
        "exclude:\n- tests: ['*']\n  reason: trainin\n- {reason: x y}\n- {test: [a], reason: x}\n"
    )
    assert accel_ci("validate").stderr.splitlines() == [
        "accel-ci: r.yaml:3: exclude[0].reason: did you mean 'training'? The reasons are training, other_device, "
        "unsupported_dtype, unsupported_op, needs_more_cards, not_implemented, upstream_bug, too_slow, or words of your own",
        "r.yaml:4: exclude[1]: needs a criterion: tests, files, classes, methods, ops, dtypes, modules, markers, decorators",
        "r.yaml:5: exclude[2].test: unknown key; did you mean 'tests'?",
    ]


def test_import_writes_a_file_of_rules(accel_ci: Run, make_project: Callable[..., Project], tmp_path: Path) -> None:
    disabled = {"test_add_npu_float32 (__main__.TestOpsPRIVATEUSE1)": ["", [""]], "what is this": 3}
    (tmp_path / "disabled.json").write_text(json.dumps(disabled))
    done = accel_ci("scope", "import", "torch-npu", "disabled.json", "--output", "rules.yaml", "--device", "emu")
    assert done.stderr.splitlines() == [
        "2 entries became 1 rules; 1 were left out",
        "  what is this: not of the form 'method (__main__.Class)' with a list",
    ]
    written = yaml.safe_load((tmp_path / "rules.yaml").read_text())
    assert written == {
        "exclude": [{"classes": ["TestOps"], "methods": ["test_add_emu_float32"], "reason": "not_implemented"}]
    }
    scope = {"rule_files": ["rules.yaml"]}
    make_project(suites={"smoke": {"stage": "smoke", "paths": ["."]}, "unit": {"paths": ["."], "scope": scope}})
    assert accel_ci("validate").returncode == 0
    bad = accel_ci("scope", "import", "xpu-ops", "disabled.json")
    assert bad.returncode != 0
    assert "disabled.json: not a skip list" in bad.stderr
