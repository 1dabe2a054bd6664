"""All definitions of a project, put together: also the seam where tests and the command line replace resources."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from accel_ci.config.settings import Project
from accel_ci.defs.integration import integration_assets
from accel_ci.defs.jobs import build_jobs
from accel_ci.defs.ledger import ledger_asset
from accel_ci.defs.leftovers import leftovers_schedules
from accel_ci.defs.manifest_io import ManifestIOManager
from accel_ci.defs.quality import quality_assets
from accel_ci.defs.rbe import rbe_assets
from accel_ci.defs.retention import prune_schedule
from accel_ci.defs.revision import revision_spec
from accel_ci.defs.schedules import build_schedules
from accel_ci.defs.sensors import build_sensors
from accel_ci.defs.stage import stages_of_a_run
from accel_ci.progress import LineProgress
from accel_ci.workspace import Workspace


def build_definitions(project: Project, *, resource_overrides: Mapping[str, Any] | None = None) -> dg.Definitions:
    """The definitions of a project; `resource_overrides` replaces resources by name (`progress`, `io_manager`, `stages`)."""
    workspace = Workspace(project)
    integration, rbe = integration_assets(workspace), rbe_assets(workspace)
    common = [ledger_asset(workspace), *quality_assets(workspace)]
    jobs = build_jobs(integration, rbe, common)
    return dg.Definitions(
        assets=[revision_spec(workspace), *integration, *rbe, *common],
        jobs=jobs.all,
        schedules=[*build_schedules(workspace, jobs), *leftovers_schedules(project), prune_schedule(project)],
        sensors=build_sensors(workspace, jobs),
        executor=dg.in_process_executor,  # also for assets that a person chooses in the UI: a run holds its build
        resources={
            "io_manager": ManifestIOManager(workspace.manifests),
            "progress": LineProgress(),
            "stages": stages_of_a_run(workspace),
            **(resource_overrides or {}),
        },
    )
