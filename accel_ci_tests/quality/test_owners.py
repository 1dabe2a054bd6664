"""The owners of incidents: by rules on tests, and by decisions on flaky tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from click.testing import CliRunner

from accel_ci.cli import main
from accel_ci.config.loading import parse_settings
from accel_ci.config.settings import Project
from accel_ci.errors import ConfigError
from accel_ci.model import Artifact, SuiteSelection, TestSelection
from accel_ci.pipelines import TEST_SELECTION
from accel_ci.quality.judgement import judge_new_builds
from accel_ci.scope.table import write_scope
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.finished_nights import (
    BROKEN,
    FLAKES,
    NIGHTS,
    RACE,
    STEADY,
    TODAY,
    Told,
    fails,
    write_night,
)
from accel_ci_tests.fixtures.scoped_builds import scope_row, scope_table

OWNERS: list[dict[str, Any]] = [
    {"ops": ["add"], "owner": "robin"},
    {"files": ["unit/test_ops.py"], "owner": "nobody, for the rule before it wins"},
    {"tests": ["*test_race"], "causes": ["backend"], "owner": "for another cause"},
    {"files": ["unit/*"], "owner": "team:unit"},
]


@pytest.fixture
def make_workspace(make_project: Callable[..., Project]) -> Callable[..., Workspace]:
    """Makes a project with a last night of three incidents: a breakage of an op, a race, and a lost test."""

    def make(owners: list[dict[str, Any]], file: str | None = None) -> Workspace:
        workspace = Workspace(make_project(quality={"owners": owners, "quarantine": {"file": file} if file else {}}))
        lost: Told = {STEADY[0]: [("crashed", "0", "card 0 does not answer")]}
        told = {**dict.fromkeys(BROKEN, fails()), RACE: FLAKES, **lost}
        for night in range(NIGHTS - 6, NIGHTS):
            build = write_night(workspace, night, told if night == NIGHTS - 1 else {}, backend=night)
        rows = [scope_row(test, op="add", suite="unit") for test in BROKEN] + [scope_row(RACE, suite="unit")]
        selection = TestSelection(
            Artifact("0" * 64, "selection.json", 2), (SuiteSelection("unit", 50, 50, {}),), 1.0,
            write_scope(scope_table(rows), workspace.artifacts),
        )  # fmt: skip
        workspace.manifests.write(workspace.manifests.path(TEST_SELECTION, build.revision, build.variant), selection)
        return workspace

    return make


def owners_in(workspace: Workspace) -> dict[str, str | None]:
    return {incident.cause: incident.owner for incident in judge_new_builds(workspace, TODAY).incidents}


def test_the_first_rule_that_matches_names_the_owner(make_workspace: Callable[..., Workspace]) -> None:
    workspace = make_workspace(OWNERS)
    assert owners_in(workspace) == {"backend": "robin", "flaky": "team:unit", "infra": None}
    own = ["--config", str(workspace.project.config_path)]
    for command in ("incidents", "causes"):
        shown = CliRunner().invoke(main, [*own, command])
        assert shown.exit_code == 0, shown.output
        assert "robin" in shown.output
        assert "team:unit" in shown.output
    told = json.loads(CliRunner().invoke(main, [*own, "causes", "--json"]).stdout)["failures"]
    assert {each["test"]: each["owner"] for each in told} == {
        **dict.fromkeys(BROKEN, "robin"), RACE: "team:unit", STEADY[0]: None
    }  # fmt: skip
    listed = json.loads(CliRunner().invoke(main, [*own, "incidents", "--json"]).stdout)
    assert {each["cause"]: each["owner"] for each in listed} == owners_in(workspace)


def test_a_rule_may_be_for_the_infrastructure(make_workspace: Callable[..., Workspace]) -> None:
    lab = {"tests": ["*"], "causes": ["infra"], "owner": "lab"}
    assert owners_in(make_workspace([lab])) == {"backend": None, "flaky": None, "infra": "lab"}


def test_a_decision_on_a_flaky_test_names_its_owner_first(make_workspace: Callable[..., Workspace]) -> None:
    workspace = make_workspace(OWNERS, "flaky.yaml")
    own = ["--config", str(workspace.project.config_path), "quarantine", "add", "--suite", "unit", "--reason", "x"]
    for test, owner in ((RACE, "kim"), (STEADY[0], "sam")):
        added = CliRunner().invoke(main, [*own, test, "--owner", owner])
        assert added.exit_code == 0, added.output
    now = datetime.now(timezone.utc)
    owners = {each.cause: each.owner for each in judge_new_builds(workspace, now).incidents}
    assert owners == {"backend": "robin", "flaky": "kim", "infra": None}


def test_owners_without_a_scope_are_told_by_the_names_of_tests(make_workspace: Callable[..., Workspace]) -> None:
    workspace = make_workspace(OWNERS)
    newest = f"nightly-{TODAY.date().fromordinal(TODAY.date().toordinal() - 1):%Y%m%d}"
    workspace.manifests.path(TEST_SELECTION, newest, "py3").unlink()
    assert owners_in(workspace)["backend"] == "nobody, for the rule before it wins"


@pytest.mark.parametrize(
    ("rule", "mistake"),
    [
        ({"owner": "robin"}, "quality.owners[0]: needs a criterion"),
        ({"tests": ["*"]}, "quality.owners[0].owner: is missing"),
        ({"tests": ["*"], "owner": "robin", "causes": ["weather"]}, "quality.owners[0].causes[0]: must be 'infra', "),
        ({"tests": ["*"], "owner": ""}, "quality.owners[0].owner: must not be empty"),
    ],
)
def test_mistakes_in_rules_are_named(make_project: Callable[..., Project], rule: dict[str, Any], mistake: str) -> None:
    text = make_project().config_path.read_text() + json.dumps({"quality": {"owners": [rule]}})[1:-1] + "\n"
    with pytest.raises(ConfigError) as error:
        parse_settings(text)
    assert mistake in str(error.value)
