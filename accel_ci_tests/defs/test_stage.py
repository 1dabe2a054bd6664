"""Runs of one build beside each other: real Dagster runs of small assets, with the resource that a stage has."""

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

import dagster as dg
import pytest
from filelock import FileLock, Timeout

from accel_ci.config.settings import Project
from accel_ci.defs.partitions import builds, partition_key, revisions_name
from accel_ci.defs.stage import Stages, stages_of_a_run
from accel_ci.errors import AccelCiError
from accel_ci.ledger.activity import read_activity
from accel_ci.model import Build, Revision, Source
from accel_ci.pipelines import INTEGRATION, PIPELINES
from accel_ci.progress import LineProgress
from accel_ci.storage.manifests import PipelineRun
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.processes import wait_for

BUILD = Build("manual-a", "py3")


@pytest.fixture
def workspace(make_project: Callable[..., Project]) -> Workspace:
    made, source = Workspace(make_project()), Source("repository", "main", "0" * 40)
    made.manifests.add_revision(Revision(BUILD.revision, "manual", datetime.now(timezone.utc), source, source))
    return made


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    home = tmp_path / "dagster"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as temporary:
        temporary.add_dynamic_partitions(revisions_name(None), [BUILD.revision])
        yield temporary


def lock_of(workspace: Workspace, stage: str) -> FileLock:
    [pipeline] = [one for one in PIPELINES if stage in one.stages]
    path = workspace.manifests.pipeline_lock_file(pipeline, BUILD)
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path)


def run(
    workspace: Workspace,
    instance: dg.DagsterInstance,
    said: list[str],
    work: Callable[[str], None],
    chosen: Sequence[str] = ("wheel", "runtime_image", "ledger"),
) -> bool:
    """A run of stages, each after the one before, that call `work`; whether it ended well."""

    def asset(name: str, *after: str) -> dg.AssetsDefinition:
        @dg.asset(name=name, deps=after, partitions_def=builds(workspace.project.settings))
        def made(context: dg.AssetExecutionContext, stages: dg.ResourceParam[Stages]) -> None:
            with stages.stage(context):
                work(name)

        return made

    result = dg.materialize(
        [asset(name, *chosen[max(0, number - 1) : number]) for number, name in enumerate(chosen)],
        instance=instance,
        partition_key=partition_key(BUILD),
        resources={"progress": LineProgress(said.append), "stages": stages_of_a_run(workspace)},
        raise_on_error=False,
    )
    return result.success


def test_a_run_has_its_pipeline_of_the_build_alone_until_it_ends(workspace: Workspace, instance: dg.DagsterInstance) -> None:
    free: dict[str, bool] = {}

    def work(stage: str) -> None:
        for pipeline in ("wheel", "source_build"):
            try:
                with lock_of(workspace, pipeline).acquire(timeout=0):
                    free[f"{pipeline} in {stage}"] = True
            except Timeout:
                free[f"{pipeline} in {stage}"] = False

    assert run(workspace, instance, [], work)
    stages = ("wheel", "runtime_image", "ledger")
    assert free == {f"{p} in {s}": p == "source_build" for p in ("wheel", "source_build") for s in stages}
    work("the end")
    assert free["wheel in the end"]


def test_a_run_that_another_is_before_waits_and_takes_nothing_away(
    workspace: Workspace, instance: dg.DagsterInstance
) -> None:
    manifest = workspace.manifests.path("runtime_image", BUILD.revision, BUILD.variant)
    said: list[str] = []
    with lock_of(workspace, "wheel"):
        manifest.write_text("{}")
        second = threading.Thread(target=run, args=(workspace, instance, said, lambda stage: None))
        second.start()
        wait_for(lambda: any(f"waiting for {BUILD.name}, which another run holds" in line for line in said))
        assert read_activity(workspace.manifests, BUILD) == {}, "it has not begun"
    second.join(60)
    assert manifest.read_text() == "{}", "it stays until there is a new one"
    came_free = next(number for number, line in enumerate(said) if f"{BUILD.name} came free" in line)
    assert came_free < said.index("wheel …")


def test_a_run_ends_first_what_dead_runs_left(workspace: Workspace, instance: dg.DagsterInstance) -> None:
    dead = workspace.project.home / "rbe" / "py3"
    (dead / "private").mkdir(parents=True)
    (dead / "lock").touch()
    said: list[str] = []
    assert run(workspace, instance, said, lambda stage: None)
    assert not (dead / "private").exists()
    [line] = [line for line in said if str(dead) in line]
    assert "its run is gone: ended" in line
    assert said.index(line) < said.index("wheel …")


def test_a_run_of_both_pipelines_begins_with_both_in_a_fixed_order(
    workspace: Workspace, instance: dg.DagsterInstance
) -> None:
    worked: list[str] = []
    said: list[str] = []
    with lock_of(workspace, "source_build"):
        both = threading.Thread(
            target=run, args=(workspace, instance, said, worked.append, ("source_build", "runtime_image"))
        )
        both.start()
        wait_for(lambda: any("waiting for" in line for line in said))
        with pytest.raises(Timeout), lock_of(workspace, "wheel").acquire(timeout=0):
            pass
        assert worked == []
    both.join(60)
    assert worked == ["source_build", "runtime_image"]


def test_the_activity_of_a_build_is_that_of_the_run_that_has_it(workspace: Workspace, instance: dg.DagsterInstance) -> None:
    seen: list[dict[str, str]] = []
    assert run(workspace, instance, [], lambda stage: seen.append(read_activity(workspace.manifests, BUILD)))
    assert seen == [{"integration": f"running at {stage}"} for stage in ("wheel", "runtime_image", "ledger")]
    assert read_activity(workspace.manifests, BUILD) == {}, "it has reported"


def test_a_stage_that_fails_is_named_until_the_next_run(workspace: Workspace, instance: dg.DagsterInstance) -> None:
    def stop(stage: str) -> None:
        if stage == "runtime_image":
            raise AccelCiError("no PyTorch")

    assert not run(workspace, instance, [], stop)
    assert read_activity(workspace.manifests, BUILD) == {"integration": "stopped after runtime_image failed"}
    assert run(workspace, instance, [], lambda stage: None)
    assert read_activity(workspace.manifests, BUILD) == {}


def test_a_killed_run_is_not_running(workspace: Workspace) -> None:
    lock, manifests = lock_of(workspace, "wheel"), workspace.manifests
    manifests.write(manifests.run_file(INTEGRATION, BUILD), PipelineRun("r", datetime.now(timezone.utc), stage="test_plan"))
    with lock:
        assert read_activity(manifests, BUILD) == {"integration": "running at test_plan"}
    assert read_activity(manifests, BUILD) == {"integration": "stopped at test_plan"}


def test_a_key_that_nobody_resolved_is_refused_and_leaves_nothing(
    workspace: Workspace, instance: dg.DagsterInstance
) -> None:
    revision = workspace.manifests.builds / BUILD.revision
    shutil.rmtree(revision)
    assert not run(workspace, instance, [], lambda stage: None)
    [failure] = instance.all_logs(instance.get_runs()[0].run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    assert "Launch the job `start`" in str(failure.get_dagster_event())
    assert not revision.exists()


def test_a_run_that_stopped_has_given_the_build_back(workspace: Workspace, instance: dg.DagsterInstance) -> None:
    def stop(stage: str) -> None:
        raise AccelCiError("no sources")

    assert not run(workspace, instance, [], stop)
    with lock_of(workspace, "wheel").acquire(timeout=0):
        pass


@pytest.mark.parametrize("stops", [False, True])
def test_the_times_of_a_run_lie_beside_its_manifests(
    workspace: Workspace, instance: dg.DagsterInstance, stops: bool
) -> None:
    def work(stage: str) -> None:
        assert workspace.manifests.run_file(INTEGRATION, BUILD).exists()
        assert workspace.manifests.wall_seconds(BUILD) is None, "it has not ended"
        if stops:
            raise AccelCiError("no sources")

    assert run(workspace, instance, [], work) != stops
    [record] = instance.get_run_records()
    times = workspace.manifests.read(workspace.manifests.run_file(INTEGRATION, BUILD), PipelineRun)
    assert times.run == record.dagster_run.run_id
    assert times.ended_at is not None
    assert record.start_time is not None
    assert record.end_time is not None
    assert record.start_time <= times.asked_at.timestamp() <= times.ended_at.timestamp() <= record.end_time
    assert workspace.manifests.wall_seconds(BUILD) == pytest.approx(
        (times.ended_at - times.asked_at).total_seconds(), abs=0.001
    )


def test_the_message_of_a_stage_that_fails_is_kept_until_it_begins_again(
    workspace: Workspace, instance: dg.DagsterInstance
) -> None:
    def fail(stage: str) -> None:
        raise AccelCiError("no compiler; install gcc") if stage == "wheel" else ValueError("a bug")

    assert not run(workspace, instance, [], fail, ["wheel"])
    assert workspace.manifests.failure("wheel", BUILD) == "no compiler; install gcc"
    assert not run(workspace, instance, [], fail, ["runtime_image"])
    assert workspace.manifests.failure("runtime_image", BUILD) == "ValueError: a bug"
    assert run(workspace, instance, [], lambda stage: None, ["wheel"])
    assert workspace.manifests.failure("wheel", BUILD) is None
