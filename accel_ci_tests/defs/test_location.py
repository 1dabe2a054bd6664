"""Two projects with a location each on one instance: what one of them has there, the other neither sees nor touches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load import location_origins_from_yaml_paths
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from prometheus_client import CollectorRegistry, generate_latest

from accel_ci.config.settings import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.instance import UNFINISHED, workspace_file
from accel_ci.defs.liveness import end_dead_runs, lock_file
from accel_ci.defs.location import asset_key, is_of, runs_of
from accel_ci.defs.metrics import InstanceMetrics
from accel_ci.defs.partitions import partition_key, revisions_name
from accel_ci.defs.run_tags import BUILD_TAG, LOCATION_TAG
from accel_ci.defs.runs import create_run
from accel_ci.defs.triggers import start_revision
from accel_ci.defs.upkeep import busy_revisions
from accel_ci.model import Build
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import ROOT, commit, git
from accel_ci_tests.fixtures.project import write_project

NIGHT = datetime(2026, 11, 27, 2, tzinfo=timezone.utc)
BUILD = Build("nightly-20261127", "py3")
EMU, NPU = "torch-emu", "torch-npu"


def project_of(folder: Path, location: str | None) -> Project:
    """Make a project of a location, with sources of its own."""
    for name, files in (("repository", {"backend/pyproject.toml": "[project]\n"}), ("upstream", {"version.txt": "1"})):
        (folder / name).mkdir(parents=True)
        git(folder / name, "init", "--quiet", "-b", "main")
        commit(folder / name, files)
    return write_project(folder, **({"location": location} if location else {}))


@pytest.fixture
def projects(tmp_path: Path) -> dict[str, Project]:
    return {location: project_of(tmp_path / location, location) for location in (EMU, NPU)}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance by the file for a cluster as far as its queue goes; nothing is started for runs."""
    text = (ROOT / "accel_ci" / "dagster.yaml").read_text()
    limits = "    max_concurrent_runs: 10\n    tag_concurrency_limits:\n"
    limits += f"      - {{key: {LOCATION_TAG}, value: {{applyLimitPerUniqueValue: true}}, limit: 2}}\n"
    before = "    max_concurrent_runs: 1\n    tag_concurrency_limits:\n"
    assert text.count(before) == 1
    launcher = "run_launcher: {module: dagster._core.test_utils, class: MockedRunLauncher}\n"
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text(text.replace(before, limits) + launcher)
    with dg.DagsterInstance.from_config(str(home)) as made:
        yield made


def ask_for(
    instance: dg.DagsterInstance,
    project: Project,
    job: str,
    build: Build = BUILD,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.QUEUED,
) -> str:
    """Create a run as Dagster's daemon does for a location of that name."""
    location, definition = str(project.settings.location), build_definitions(project).resolve_job_def(job)
    tags = {**definition.run_tags, **definition.get_tags_for_partition_key(partition_key(build), None)}
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), "__repository__"), job)
    return instance.create_run_for_job(definition, tags=tags, status=status, remote_job_origin=origin).run_id


def test_all_keys_of_a_location_are_below_its_name(projects: dict[str, Project], tmp_path: Path) -> None:
    alone = build_definitions(project_of(tmp_path / "alone", None)).resolve_asset_graph()
    for location, project in projects.items():
        definitions = build_definitions(project)
        dg.Definitions.validate_loadable(definitions)
        graph = definitions.resolve_asset_graph()
        assert graph.get_all_asset_keys() == {asset_key(location, key.path[-1]) for key in alone.get_all_asset_keys()}
        for key in alone.get_all_asset_keys():
            below = {asset_key(location, parent.path[-1]) for parent in alone.get(key).parent_keys}
            assert graph.get(asset_key(location, key.path[-1])).parent_keys == below
        assert {key.asset_key.path[0] for key in graph.asset_check_keys} == {location}
        assert len(graph.asset_check_keys) == len(alone.asset_check_keys)
        nightly = definitions.resolve_job_def("nightly_integration")
        assert "device_test_results" in {node.name for node in nightly.nodes}, "steps keep their names"


def test_the_same_revision_is_in_each_location_by_itself(projects: dict[str, Project], instance: dg.DagsterInstance) -> None:
    emu, npu = (Workspace(projects[location]) for location in (EMU, NPU))
    assert start_revision(instance, emu, "nightly", now=NIGHT).key == BUILD.revision
    assert instance.get_dynamic_partitions(revisions_name(EMU)) == [BUILD.revision]
    assert instance.get_dynamic_partitions(revisions_name(NPU)) == []
    assert instance.get_latest_materialization_event(asset_key(NPU, "revision")) is None
    assert start_revision(instance, npu, "nightly", now=NIGHT).key == BUILD.revision
    assert instance.get_latest_materialization_event(asset_key(NPU, "revision")) is not None
    assert instance.get_dynamic_partitions(revisions_name(None)) == []
    instance.delete_dynamic_partition(revisions_name(NPU), BUILD.revision)
    assert instance.get_dynamic_partitions(revisions_name(EMU)) == [BUILD.revision]


def test_the_command_line_and_its_server_name_the_location(
    projects: dict[str, Project], instance: dg.DagsterInstance
) -> None:
    for location, project in projects.items():
        with workspace_file(project) as file:
            assert [origin.location_name for origin in location_origins_from_yaml_paths([str(file)])] == [location]
        job = build_definitions(project).resolve_job_def("pr")
        run = create_run(instance, location, job, BUILD, {}, assets=["wheel"])
        assert run.remote_job_origin is not None
        assert run.remote_job_origin.location_name == location
        assert run.asset_selection == {asset_key(location, "wheel")}


def test_runs_of_another_location_are_neither_seen_nor_counted(
    projects: dict[str, Project], instance: dg.DagsterInstance
) -> None:
    emu = ask_for(instance, projects[EMU], "intraday")
    npu = ask_for(instance, projects[NPU], "intraday", Build("intraday-20261127-0600", "py3"))
    single = ask_for(instance, projects[NPU], "__ASSET_JOB", Build("manual-a", "py3"))  # has no tags of a job
    assert LOCATION_TAG not in instance.get_run_by_id(single).tags  # type: ignore[union-attr]

    def found(location: str | None, job: str | None = None) -> list[str]:
        return [one.dagster_run.run_id for one in runs_of(instance, location, job=job, statuses=UNFINISHED)]

    assert (found(EMU), found(EMU, "intraday")) == ([emu], [emu])
    assert (found(NPU), found(NPU, "intraday")) == ([single, npu], [npu])
    assert busy_revisions(instance, EMU, NIGHT) == {BUILD.revision}
    assert busy_revisions(instance, NPU, NIGHT) == {"intraday-20261127-0600", "manual-a"}
    for location, count in ((EMU, 1), (NPU, 1)):
        registry = CollectorRegistry()
        registry.register(InstanceMetrics(instance, location))
        lines = generate_latest(registry).decode().splitlines()
        assert f'accel_ci_runs{{status="queued",trigger="intraday"}} {count}.0' in lines


def test_a_project_without_a_location_leaves_the_runs_of_others_alone(
    projects: dict[str, Project], instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    definition = build_definitions(project_of(tmp_path / "alone", None)).resolve_job_def("intraday")
    own = instance.create_run_for_job(definition, tags=definition.run_tags)
    for _ in range(3):
        ask_for(instance, projects[NPU], "intraday")
    assert [one.dagster_run.run_id for one in runs_of(instance, None, job="intraday")] == [own.run_id]
    assert is_of(own, None)
    assert not is_of(own, NPU)


def test_a_dead_run_is_ended_by_its_own_location_alone(projects: dict[str, Project], instance: dg.DagsterInstance) -> None:
    run = ask_for(instance, projects[EMU], "pr", status=dg.DagsterRunStatus.STARTED)
    free = lock_file(projects[EMU].home, run)
    free.parent.mkdir(parents=True)
    free.touch()
    assert end_dead_runs(instance, projects[NPU].home) == []
    assert end_dead_runs(instance, projects[EMU].home) == [run]


def test_the_queue_has_a_limit_for_each_location(projects: dict[str, Project], instance: dg.DagsterInstance) -> None:
    emu = [ask_for(instance, projects[EMU], "pr", Build(f"pr-{number}", "py3")) for number in range(4)]
    [npu] = [ask_for(instance, projects[NPU], "pr", Build("pr-0", "py3"))]
    runs = [instance.get_run_by_id(run) for run in (emu[0], npu)]
    assert [run and run.tags[BUILD_TAG] for run in runs] == [f"{EMU}/pr-0~py3/integration", f"{NPU}/pr-0~py3/integration"]
    with WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as workspace:
        list(QueuedRunCoordinatorDaemon(interval_seconds=1).run_iteration(workspace))
    assert {run.run_id for run in instance.run_launcher.queue()} == {*emu[:2], npu}  # type: ignore[attr-defined]
