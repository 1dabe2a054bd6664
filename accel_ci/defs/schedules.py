"""The schedules: one for each job that cron starts."""

from typing import Any

import dagster as dg

from accel_ci.config.settings import CronJob
from accel_ci.defs.triggers import run_requests, start_revision, tonights_revision
from accel_ci.errors import SourceError
from accel_ci.pipelines import Job, Pipeline
from accel_ci.workspace import Workspace

_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def build_schedules(workspace: Workspace, pipeline: Pipeline) -> list[dg.ScheduleDefinition]:
    """Make the schedules of a pipeline's jobs."""
    configured = [(job, job.settings(workspace.project.settings)) for job in pipeline.jobs]
    return [_schedule(workspace, pipeline, job, own) for job, own in configured if isinstance(own, CronJob)]


def _schedule(workspace: Workspace, pipeline: Pipeline, job: Job, settings: CronJob) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"{job.command}_schedule",
        cron_schedule=settings.cron,
        execution_timezone="UTC",
        job_name=job.name,
        description=f"{job.description} At `{settings.cron}` UTC.",
        default_status=dg.DefaultScheduleStatus.RUNNING if settings.enabled else dg.DefaultScheduleStatus.STOPPED,
    )
    def schedule(context: dg.ScheduleEvaluationContext) -> Any:
        if job.skip_while_running and (run := _unfinished_run(context.instance, job.name)):
            return dg.SkipReason(f"the {job.command} run {run} has not finished")
        now = context.scheduled_execution_time
        try:
            revision = tonights_revision(workspace.manifests, now) if pipeline.follows else None
            revision = revision or start_revision(context.instance, workspace, job.triggers[0], now=now)
        except SourceError as error:
            return dg.SkipReason(f"the revision cannot be resolved: {error}")
        return list(run_requests(workspace.project.settings, job, revision, f"{job.command}:{now.isoformat()}"))

    return schedule


def _unfinished_run(instance: dg.DagsterInstance, name: str) -> str | None:
    runs = instance.get_runs(dg.RunsFilter(job_name=name, statuses=_UNFINISHED), limit=1)
    return runs[0].run_id if runs else None
