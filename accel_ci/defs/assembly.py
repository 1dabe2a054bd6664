"""All definitions of a project, put together: also the seam where tests and the command line replace resources."""

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

import dagster as dg

from accel_ci.config.settings import Project
from accel_ci.defs.jobs import build_job
from accel_ci.defs.ledger import ledger_asset
from accel_ci.defs.leftovers import leftovers_schedules
from accel_ci.defs.manifest_io import ManifestIOManager
from accel_ci.defs.quality import quality_assets
from accel_ci.defs.retention import prune_schedule
from accel_ci.defs.revision import revision_spec
from accel_ci.defs.schedules import build_schedules
from accel_ci.defs.sensors import build_sensors
from accel_ci.defs.stage import stages_of_a_run
from accel_ci.pipelines import PIPELINES, Pipeline
from accel_ci.progress import LineProgress
from accel_ci.workspace import Workspace


def build_definitions(
    project: Project,
    *,
    pipelines: tuple[Pipeline, ...] = PIPELINES,
    resource_overrides: Mapping[str, Any] | None = None,
) -> dg.Definitions:
    """Make the definitions of a project; `resource_overrides` replaces resources by name, such as `progress`."""
    workspace, settings = Workspace(project, pipelines), project.settings
    variants = [variant.name for variant in settings.variants]
    common = [ledger_asset(workspace), *quality_assets(workspace)]
    assets: list[dg.AssetsDefinition | dg.AssetSpec] = [revision_spec(workspace), *common]
    jobs, schedules = [], [*leftovers_schedules(project), prune_schedule(project)]
    for pipeline in pipelines:
        if pipeline.configured(settings):
            own = resolve_name(pipeline.assets)(workspace)
            assets += own
            jobs += [build_job(pipeline, job, [*own, *common], variants) for job in pipeline.jobs]
            schedules += build_schedules(workspace, pipeline)
    return dg.Definitions(
        assets=assets,
        jobs=jobs,
        schedules=schedules,
        sensors=build_sensors(workspace),
        executor=dg.in_process_executor,  # also for single assets that a person chooses in the UI: a run locks its build
        resources={
            "io_manager": ManifestIOManager(workspace.manifests),
            "progress": LineProgress(),
            "stages": stages_of_a_run(workspace),
            "workspace": workspace,
            **(resource_overrides or {}),
        },
    )
