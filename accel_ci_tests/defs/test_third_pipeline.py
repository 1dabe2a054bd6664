"""A pipeline of one stage beside the two that there are: an entry and a module are all that it takes."""

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import dagster as dg
import pytest
from filelock import FileLock, Timeout

from accel_ci.config.settings import CronJob, Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.partitions import build_of, partition_key
from accel_ci.defs.run_tags import BUILD_TAG
from accel_ci.defs.stage import Stages, stage_asset
from accel_ci.defs.triggers import start_revision
from accel_ci.ledger.status import read_status
from accel_ci.model import Artifact, Build
from accel_ci.pipelines import INTEGRATION, PIPELINES, Job, Pipeline, commands, next_stage
from accel_ci.workspace import Workspace

NIGHT = datetime(2026, 11, 27, 4, tzinfo=timezone.utc)
BUILD = Build("nightly-20261127", "py3")


def stack_image(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace], stages: dg.ResourceParam[Stages]
) -> dg.MaterializeResult[Artifact]:
    """The software stack's image."""
    with stages.stage(context) as step:
        for pipeline, free in ((STACK, False), (INTEGRATION, True)):
            assert is_free(workspace, pipeline, build_of(context)) == free
        step.note("made")
    return dg.MaterializeResult(value=Artifact("0" * 64, "image", 1))


def build_assets(workspace: Workspace) -> list[dg.AssetsDefinition]:
    """Make the pipeline's assets."""
    return [stage_asset(STACK, workspace, stack_image, Artifact, kinds={"docker"})]


STACK = Pipeline(
    name="stack",
    stages=("stack_image",),
    assets=f"{__name__}:build_assets",
    jobs=(
        Job("nightly_stack", "nightly_stack", ("nightly",), lambda s: CronJob(cron="0 4 * * *", enabled=True), "The image."),
    ),
    suites=lambda settings, trigger: ("stack",),
    outline=lambda settings, trigger: "docker build",
    follows=True,
)
THREE = (*PIPELINES, STACK)


def is_free(workspace: Workspace, pipeline: Pipeline, build: Build) -> bool:
    try:
        with FileLock(workspace.manifests.pipeline_lock_file(pipeline, build)).acquire(timeout=0):
            return True
    except Timeout:
        return False


@pytest.fixture
def workspace(repository: Path, make_project: Callable[..., Project]) -> Workspace:
    return Workspace(make_project(), THREE)


@pytest.fixture
def definitions(workspace: Workspace) -> dg.Definitions:
    return build_definitions(workspace.project, pipelines=THREE)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    home = tmp_path / "dagster"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as temporary:
        yield temporary


def test_it_has_a_job_a_schedule_and_a_command(definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
    dg.Definitions.validate_loadable(definitions)
    assert commands(THREE)["nightly_stack"] == (STACK, "nightly")
    assets = definitions.resolve_job_def("nightly_stack").asset_layer.executable_asset_keys
    assert {key.to_user_string() for key in assets} == {
        "stack_image",
        "ledger",
        "flakiness",
        "coverage",
        "incidents",
        "quarantine",
        "quality_report",
        "hud",
    }
    repository = definitions.get_repository_def()
    context = dg.build_schedule_context(
        instance=instance, instance_ref=instance.get_ref(), scheduled_execution_time=NIGHT, repository_def=repository
    )
    schedule = repository.get_schedule_def("nightly_stack_schedule")
    assert (schedule.cron_schedule, schedule.default_status.value) == ("0 4 * * *", "RUNNING")
    [request] = schedule.evaluate_tick(context).run_requests or []
    assert (request.job_name, request.partition_key) == ("nightly_stack", "nightly-20261127|py3")
    assert request.tags[BUILD_TAG] == "nightly-20261127~py3/stack"


def test_its_run_locks_it_alone_and_its_stage_is_one_of_the_builds(
    definitions: dg.Definitions, workspace: Workspace, instance: dg.DagsterInstance
) -> None:
    assert start_revision(instance, workspace, "nightly", now=NIGHT).key == BUILD.revision
    ran = definitions.resolve_job_def("nightly_stack").execute_in_process(
        instance=instance, partition_key=partition_key(BUILD), asset_selection=[dg.AssetKey("stack_image")]
    )
    assert ran.success
    assert ran.dagster_run.tags[BUILD_TAG] == "nightly-20261127~py3/stack"
    assert is_free(workspace, STACK, BUILD)
    assert workspace.manifests.find("stack_image", BUILD, Artifact) is not None
    begun = workspace.manifests.begun(BUILD)
    assert begun == ("stack_image",)
    assert next_stage((), begun, THREE) == "stack_image"
    assert next_stage(("wheel",), begun, THREE) == "runtime_image", "the first pipeline's stages come first"
    assert read_status(workspace.manifests, BUILD).state == "stopped at ledger"


def test_a_build_misses_its_suite_where_its_job_is_enabled(workspace: Workspace, instance: dg.DagsterInstance) -> None:
    settings = workspace.project.settings
    nightly, manual = (start_revision(instance, workspace, trigger, slug="a") for trigger in ("nightly", "manual"))
    assert STACK.expected(settings, nightly, "py3")
    assert not STACK.expected(settings, nightly, "py4")
    assert not STACK.expected(settings, manual, "py3")
    assert INTEGRATION.expected(settings, manual, "py3")
