"""All definitions of a project, put together: also the seam where tests and the command line replace resources."""

from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

import dagster as dg

from accel_ci.config.executor_settings import InProcessExecutor
from accel_ci.config.settings import Project, Settings
from accel_ci.defs.automation import build_schedules, build_sensors
from accel_ci.defs.executors import build_executor
from accel_ci.defs.ledger import ledger_asset
from accel_ci.defs.liveness import living_executor
from accel_ci.defs.location import asset_key, in_location, location_tags
from accel_ci.defs.notify import notify_sensors
from accel_ci.defs.partitions import builds, revisions
from accel_ci.defs.pull_requests import pull_request_sensors
from accel_ci.defs.quality import quality_assets
from accel_ci.defs.relay import relay_sensors
from accel_ci.defs.release import release_assets
from accel_ci.defs.run_tags import BUILD_TAG, TRIGGER_TAG
from accel_ci.defs.stack import stack_assets, stack_sensors
from accel_ci.defs.stage import ManifestIOManager, retries_of_steps, stages_of_a_run, stages_of_a_step
from accel_ci.defs.start import HOW_TO_START, start_job
from accel_ci.defs.upkeep import upkeep_schedules
from accel_ci.model import Build
from accel_ci.pipelines import INTEGRATION, PIPELINES, REVISION, Job, Pipeline
from accel_ci.progress import LineProgress
from accel_ci.workspace import Workspace


def build_definitions(
    project: Project,
    *,
    pipelines: tuple[Pipeline, ...] = PIPELINES,
    resource_overrides: Mapping[str, Any] | None = None,
    in_process: bool = False,
) -> dg.Definitions:
    """Make the definitions of a project; `resource_overrides` replaces resources by name, such as `progress`.

    All steps share the process of their run if that is the project's executor, or `in_process` is set.
    """
    workspace, settings = Workspace(project, pipelines, patient=True), project.settings
    revision = dg.AssetSpec(  # a trigger reports it, and no run makes it
        REVISION,
        description="The exact source SHAs tested together, resolved once when the build is triggered.",
        group_name="sources",
        kinds={"git"},
        owners=list(settings.backend.owners),
        partitions_def=revisions(settings.location),
    )
    common = [ledger_asset(workspace), *release_assets(workspace), *quality_assets(workspace)]
    assets: list[dg.AssetsDefinition | dg.AssetSpec] = [revision, *common]
    here = living_executor(project.home)
    if in_process or isinstance(settings.executor, InProcessExecutor):
        executor, stages = here, stages_of_a_run(workspace)
    else:
        executor, stages = build_executor(workspace, settings.executor), stages_of_a_step(workspace)
    jobs, schedules = [start_job(workspace, here)], upkeep_schedules(project, here)
    for pipeline in pipelines:
        if pipeline.configured(settings):
            own = resolve_name(pipeline.assets)(workspace)
            own += stack_assets(workspace) if pipeline == INTEGRATION else []
            assets += own
            jobs += [_job(settings, pipeline, job, [*own, *common], executor) for job in pipeline.jobs]
            schedules += build_schedules(workspace, pipeline)
    placed = in_location(settings.location, assets)
    checks = [key for asset in placed if isinstance(asset, dg.AssetsDefinition) for key in asset.check_keys]
    return dg.Definitions(
        assets=placed,
        jobs=jobs,
        schedules=schedules,
        sensors=[
            *build_sensors(workspace),
            *stack_sensors(workspace),
            *relay_sensors(workspace),
            *pull_request_sensors(workspace),
            *notify_sensors(workspace, checks),
        ],
        executor=executor,  # also for single assets that a person chooses in the UI: a run locks its build
        resources={
            "io_manager": ManifestIOManager(workspace.manifests, 0 if in_process else retries_of_steps(settings)),
            "progress": LineProgress(),
            "stages": stages,
            "workspace": workspace,
            **(resource_overrides or {}),
        },
    )


def _job(
    settings: Settings,
    pipeline: Pipeline,
    job: Job,
    assets: Sequence[dg.AssetsDefinition],
    executor: dg.ExecutorDefinition,
) -> Any:
    """Make a job of a pipeline over `assets`, whose keys do not name the location yet."""
    location, partitions = settings.location, builds(settings)
    works_on = f"{location}/" if location else ""

    def tags(key: str) -> dict[str, str]:
        dimensions = partitions.get_partition_key_from_str(key).keys_by_dimension
        return {BUILD_TAG: f"{works_on}{Build(dimensions[REVISION], dimensions['variant']).name}/{pipeline.name}"}

    return dg.define_asset_job(
        job.name,
        selection=dg.AssetSelection.assets(*(asset_key(location, asset.key.path[-1]) for asset in assets)),
        description=f"{job.description}\n\n{HOW_TO_START}",
        executor_def=executor,
        tags={TRIGGER_TAG: job.triggers[0], **location_tags(location)},
        config=dg.PartitionedConfig(
            partitions, run_config_for_partition_key_fn=lambda key: {}, tags_for_partition_key_fn=tags
        ),
    )
