"""The sensors: a new upstream commit starts the job `main`; after a failed run the HUD shows where it stopped."""

from datetime import datetime, timedelta, timezone

import dagster as dg

from accel_ci.defs.quality import current_flakiness, refresh_hud
from accel_ci.defs.triggers import run_requests, start_revision
from accel_ci.errors import SourceError
from accel_ci.pipelines import INTEGRATION
from accel_ci.source.git import resolve_source, resolved_sha
from accel_ci.source.watch import reason_to_wait
from accel_ci.workspace import Workspace


def build_sensors(workspace: Workspace) -> list[dg.SensorDefinition]:
    """Make the sensors of the project."""
    return [_upstream_sensor(workspace), _hud_sensor(workspace)]


def _upstream_sensor(workspace: Workspace) -> dg.SensorDefinition:
    project, job = workspace.project, INTEGRATION.job_for("main")
    settings, upstream = project.settings.jobs.main, project.settings.upstream

    @dg.sensor(
        name="upstream_main_sensor",
        job_name=job.name,
        minimum_interval_seconds=settings.check_every_seconds,
        description=f"{job.description} Watches {upstream.ref} of {upstream.repository}; the cursor is the last SHA.",
        default_status=dg.DefaultSensorStatus.RUNNING if settings.enabled else dg.DefaultSensorStatus.STOPPED,
    )
    def upstream_main_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        try:
            # Dagster allows a tick 60 seconds, which include the start of its runs.
            limit = min(project.settings.limits.git_seconds, 30)
            sha = resolved_sha(resolve_source(upstream.repository, upstream.ref, ".", project.root, timeout_s=limit))
            now = datetime.now(timezone.utc)
            minimum = timedelta(minutes=settings.minimum_interval_minutes)
            reason = reason_to_wait(context.cursor, sha, _last_started(context.instance, job.name), now, minimum)
            if reason is not None:
                return dg.SkipReason(reason)
            revision = start_revision(context.instance, workspace, "main", now=now, upstream_sha=sha)
        except SourceError as error:
            return dg.SkipReason(f"upstream cannot be asked: {error}")
        requests = run_requests(project.settings, job, revision, f"{job.command}:{sha}")
        return dg.SensorResult(run_requests=list(requests), cursor=sha)

    return upstream_main_sensor


def _last_started(instance: dg.DagsterInstance, job: str) -> datetime | None:
    records = instance.get_run_records(dg.RunsFilter(job_name=job), limit=1)
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
