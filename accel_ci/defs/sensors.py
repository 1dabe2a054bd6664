"""What events start: a new upstream commit starts `main`; a run that fails has the HUD show where it stopped."""

from datetime import datetime, timedelta, timezone
from typing import Any

import dagster as dg

from accel_ci.defs.jobs import DESCRIPTIONS, Jobs
from accel_ci.defs.quality import current_flakiness, refresh_hud
from accel_ci.defs.triggers import run_requests, start_revision
from accel_ci.errors import SourceError
from accel_ci.source.git import resolve_source, resolved_sha
from accel_ci.source.watch import Wait, next_step
from accel_ci.workspace import Workspace


def build_sensors(workspace: Workspace, jobs: Jobs) -> list[dg.SensorDefinition]:
    """The sensors of the project."""
    return [_upstream_sensor(workspace, jobs.integration["main"]), _hud_sensor(workspace)]


def _upstream_sensor(workspace: Workspace, job: Any) -> dg.SensorDefinition:
    project = workspace.project
    settings, upstream = project.settings.jobs.main, project.settings.upstream

    @dg.sensor(
        name="upstream_main_sensor",
        job=job,
        minimum_interval_seconds=settings.check_every_seconds,
        description=f"{DESCRIPTIONS['main']} Watches {upstream.ref} of {upstream.repository}; the cursor is the last SHA.",
        default_status=dg.DefaultSensorStatus.RUNNING if settings.enabled else dg.DefaultSensorStatus.STOPPED,
    )
    def upstream_main_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        try:
            # Dagster gives a tick 60 seconds, the starting of the runs included.
            limit = min(project.settings.limits.git_seconds, 30)
            sha = resolved_sha(resolve_source(upstream.repository, upstream.ref, ".", project.root, timeout_s=limit))
            now = datetime.now(timezone.utc)
            step = next_step(
                context.cursor or None,
                sha,
                _last_started(context.instance),
                now,
                timedelta(minutes=settings.minimum_interval_minutes),
            )
            if isinstance(step, Wait):
                return dg.SkipReason(step.reason)
            revision = start_revision(context.instance, workspace, "main", now=now, upstream_sha=sha)
        except SourceError as error:
            return dg.SkipReason(f"upstream cannot be asked: {error}")
        return dg.SensorResult(run_requests=list(run_requests(workspace, revision, f"main:{sha}")), cursor=sha)

    return upstream_main_sensor


def _last_started(instance: dg.DagsterInstance) -> datetime | None:
    records = instance.get_run_records(dg.RunsFilter(job_name="main"), limit=1)
    return records[0].create_timestamp if records else None


def _hud_sensor(workspace: Workspace) -> dg.SensorDefinition:
    @dg.run_failure_sensor(
        name="stopped_build_sensor",
        description="Shows in the HUD at which stage a build stopped.",
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def stopped_build_sensor(context: dg.RunFailureSensorContext) -> None:
        refresh_hud(workspace, current_flakiness(workspace))

    return stopped_build_sensor
