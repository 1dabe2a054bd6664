"""The complete stages of a build, and what makes them incomplete."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.settings import Project
from accel_ci.errors import AccelCiError
from accel_ci.model import (
    Artifact,
    Build,
    DeviceTestResults,
    Revision,
    RuntimeImage,
    SoftwareStack,
    Source,
    TestPlan,
    TestSelection,
    Wheel,
)
from accel_ci.pipelines import INTEGRATION
from accel_ci.resumption import (
    begin_again,
    begin_stage,
    builds_to_resume,
    complete_stage,
    stages_left,
    stopped_builds,
    take_up,
)
from accel_ci.storage.manifests import PipelineRun
from accel_ci.workspace import Workspace

BUILD = Build("manual-a", "py3")
NOW = datetime.now(timezone.utc)
FILE = Artifact("0" * 64, "file", 1)
RESULTS = DeviceTestResults(FILE, ("unit",), {}, (), (), 0.0, 0.0, 0.0)
MANIFESTS = (
    Wheel("toy", "1", FILE, FILE, (), reused=False, work_s=0.0),
    RuntimeImage("venv", "python", "1" * 64, "3.11", "2", None, (), reused=False, work_s=0.0),
    RESULTS,
    TestSelection(FILE, (), 0.0),
    TestPlan(FILE, 1, 1, 1, 2, 1.0, 1.0),
    RESULTS,
)
STAGES = INTEGRATION.stages
SUITES = {"smoke": {"stage": "smoke", "paths": ["tests/smoke"]}, "unit": {"paths": ["tests/unit"], "pytest_args": ["-x"]}}
POOL = {"cards": 2, "card_environment": "TOY_CARD"}

MakeProject = Callable[..., Project]


@pytest.fixture
def workspace(make_project: MakeProject) -> Workspace:
    """A build all of whose stages are complete."""
    made, source = Workspace(make_project()), Source("repository", "main", "0" * 40)
    made.manifests.add_revision(Revision(BUILD.revision, "manual", NOW, source, source))
    for stage, manifest in zip(STAGES, MANIFESTS, strict=True):
        complete_stage(made, INTEGRATION, BUILD, stage, manifest, well=True)
    return made


@pytest.mark.parametrize(
    ("sections", "left"),
    [
        ({}, ()),
        ({"limits": {"test_timeout_seconds": 7}}, ()),
        ({"pool": {**POOL, "cards": 3, "rounds": 4}}, ()),
        ({"suites": SUITES}, STAGES[3:]),
        ({"pool": {**POOL, "environment": {"A": "b"}}}, (*STAGES[2:4], STAGES[5])),
        ({"wheels": {"strict": True}}, STAGES[:1]),
    ],
    ids=["nothing", "limits", "cards", "suites", "environment", "wheels"],
)
def test_what_a_stage_depends_on(
    workspace: Workspace, make_project: MakeProject, sections: dict[str, Any], left: tuple[str, ...]
) -> None:
    assert stages_left(Workspace(make_project(**sections)), INTEGRATION, BUILD) == left


def test_the_stack_comes_first_where_it_is_configured(workspace: Workspace, make_project: MakeProject) -> None:
    section = {"components": [{"name": "runtime", "repository": "runtime", "build": [["make"]]}]}
    later = Workspace(make_project(stack=section))
    [pipeline, _] = later.pipelines
    first, *others = pipeline.stages
    assert tuple(others[1:]) == STAGES
    assert stages_left(later, pipeline, BUILD) == (first, *others[:3]), "what is made on top of the stack is made anew"
    made = SoftwareStack((), FILE, "2" * 64, "prefix", {}, 0.0)
    for stage, manifest in zip(pipeline.stages, (made, RESULTS, *MANIFESTS), strict=True):
        complete_stage(later, pipeline, BUILD, stage, manifest, well=True)
    assert stages_left(later, pipeline, BUILD) == ()
    changed = Workspace(make_project(stack={**section, "environment": {"A": "{stack}"}}))
    assert stages_left(changed, pipeline, BUILD) == (first, *others[:3])
    assert stages_left(Workspace(make_project()), INTEGRATION, BUILD) == STAGES[:2], "without its section, there is none"
    begin_stage(later, pipeline, BUILD, first)
    assert stages_left(later, pipeline, BUILD) == pipeline.stages


def test_deviceless_suites_come_before_smoke_where_there_are_some(workspace: Workspace, make_project: MakeProject) -> None:
    suites = {**SUITES, "unit": {"paths": ["tests/unit"]}, "lint": {"stage": "deviceless", "commands": [["true"]]}}
    jobs = make_project().settings.jobs.model_dump(mode="json", exclude_defaults=True)
    for job in ("nightly", "intraday", "main", "pr"):
        jobs[job]["suites"] = ["smoke", "unit", "lint"]
    later = Workspace(make_project(suites=suites, jobs=jobs))
    [pipeline, _] = later.pipelines
    assert pipeline.stages == (*STAGES[:2], "deviceless_results", *STAGES[2:])
    assert pipeline.first == STAGES[0]
    assert stages_left(later, pipeline, BUILD) == ("deviceless_results",)
    complete_stage(later, pipeline, BUILD, "deviceless_results", RESULTS, well=True)
    assert stages_left(later, pipeline, BUILD) == ()
    suites["lint"] = {"stage": "deviceless", "commands": [["false"]]}
    changed = Workspace(make_project(suites=suites, jobs=jobs, pool={**POOL, "processes": 4}))
    assert stages_left(changed, pipeline, BUILD) == ("deviceless_results",)


def test_a_stage_that_begins_again_and_those_after_it_are_left(workspace: Workspace) -> None:
    begin_stage(workspace, INTEGRATION, BUILD, STAGES[3])
    assert stages_left(workspace, INTEGRATION, BUILD) == STAGES[3:]
    begin_again(workspace, INTEGRATION, BUILD)
    assert stages_left(workspace, INTEGRATION, BUILD) == STAGES


def test_a_stage_whose_check_failed_or_whose_manifest_changed_is_left(workspace: Workspace) -> None:
    smoke = workspace.manifests.path(STAGES[2], *vars(BUILD).values())
    smoke.write_text(smoke.read_text().replace("unit", "other"))
    assert stages_left(workspace, INTEGRATION, BUILD) == STAGES[2:3]
    begin_stage(workspace, INTEGRATION, BUILD, STAGES[5])
    complete_stage(workspace, INTEGRATION, BUILD, STAGES[5], RESULTS, well=False)
    assert stages_left(workspace, INTEGRATION, BUILD) == (STAGES[2], STAGES[5])


def test_rounds_of_another_selection_are_opened_again(workspace: Workspace, make_project: MakeProject) -> None:
    rounds = workspace.run_folder(BUILD) / "device"
    begin_stage(workspace, INTEGRATION, BUILD, STAGES[5])
    (rounds / "round-1").mkdir(parents=True)
    complete_stage(workspace, INTEGRATION, BUILD, STAGES[5], RESULTS, well=True)
    assert (rounds.with_name("device.last") / "round-1").is_dir()
    assert take_up(Workspace(make_project(suites=SUITES)), INTEGRATION, BUILD) == STAGES[3:]
    assert (rounds / "round-1").is_dir()


def test_a_kill_between_the_mark_and_the_end_leaves_no_rounds_to_take_up(workspace: Workspace) -> None:
    rounds = workspace.run_folder(BUILD) / "device"
    (rounds / "round-1").mkdir(parents=True)
    assert stages_left(workspace, INTEGRATION, BUILD) == ()
    begin_stage(workspace, INTEGRATION, BUILD, STAGES[0])
    assert not rounds.exists()


def write_run(workspace: Workspace, build: Build, **changes: Any) -> None:
    run = PipelineRun("run", NOW, **changes)
    workspace.manifests.write(workspace.manifests.run_file(INTEGRATION, build), run)


def test_builds_that_stopped(workspace: Workspace) -> None:
    with pytest.raises(AccelCiError, match="no build was interrupted or killed"):
        builds_to_resume(workspace, None)
    write_run(workspace, BUILD, ended_at=NOW, ending="failed")
    assert stopped_builds(workspace.manifests) == []
    [(named, job)] = builds_to_resume(workspace, BUILD)
    assert (named, job.name) == (BUILD, "nightly_integration")
    for ended in ({}, {"ended_at": NOW, "ending": "interrupted"}):
        write_run(workspace, BUILD, **ended)
        assert builds_to_resume(workspace, None) == [(BUILD, job)]
    write_run(workspace, BUILD, ended_at=NOW, reported=True)
    with pytest.raises(AccelCiError, match=r"nothing of manual-a~py3 is left .* --revision manual-a --again"):
        builds_to_resume(workspace, BUILD)


def test_a_mark_that_is_damaged_counts_as_none(workspace: Workspace) -> None:
    mark: Path = workspace.manifests.folder(BUILD) / f".complete-{STAGES[1]}.json"
    mark.write_text("{")
    assert stages_left(workspace, INTEGRATION, BUILD) == STAGES[1:2]
