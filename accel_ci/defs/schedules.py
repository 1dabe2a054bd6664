"""What cron starts: the nightly of each pipeline, and the intraday runs, which are skipped while one still runs."""

from collections.abc import Callable
from typing import Any

import dagster as dg

from accel_ci.config.settings import BazelJob, ScheduledJob
from accel_ci.defs.jobs import DESCRIPTIONS, RBE_DESCRIPTION, RBE_JOB, Jobs, job_name
from accel_ci.defs.triggers import rbe_run_requests, run_requests, start_revision, tonights_revision
from accel_ci.errors import SourceError
from accel_ci.model import Trigger
from accel_ci.workspace import Workspace

_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def build_schedules(workspace: Workspace, jobs: Jobs) -> list[dg.ScheduleDefinition]:
    """The schedules of the jobs that have one."""
    settings = workspace.project.settings.jobs
    schedules = [
        _schedule(workspace, "nightly", settings.nightly, jobs.integration["nightly"], skip_while_running=False),
        _schedule(workspace, "intraday", settings.intraday, jobs.integration["intraday"], skip_while_running=True),
    ]
    if jobs.rbe is not None and settings.nightly_rbe is not None:
        schedules.append(_rbe_schedule(workspace, settings.nightly_rbe, jobs.rbe))
    return schedules


def _rbe_schedule(workspace: Workspace, job_settings: BazelJob, job: Any) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"{RBE_JOB}_schedule",
        cron_schedule=job_settings.cron,
        execution_timezone="UTC",
        job=job,
        description=f"{RBE_DESCRIPTION} At `{job_settings.cron}` UTC.",
        default_status=_status(job_settings.enabled, dg.DefaultScheduleStatus),
    )
    def schedule(context: dg.ScheduleEvaluationContext) -> Any:
        now = context.scheduled_execution_time
        try:
            revision = tonights_revision(workspace, now) or start_revision(context.instance, workspace, "nightly", now=now)
        except SourceError as error:
            return dg.SkipReason(f"the revision cannot be resolved: {error}")
        return list(rbe_run_requests(workspace, revision, f"{RBE_JOB}:{now.isoformat()}"))

    return schedule


def _schedule(
    workspace: Workspace, trigger: Trigger, job_settings: ScheduledJob, job: Any, *, skip_while_running: bool
) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"{trigger}_schedule",
        cron_schedule=job_settings.cron,
        execution_timezone="UTC",
        job=job,
        description=f"{DESCRIPTIONS[trigger]} At `{job_settings.cron}` UTC.",
        default_status=_status(job_settings.enabled, dg.DefaultScheduleStatus),
    )
    def schedule(context: dg.ScheduleEvaluationContext) -> Any:
        if skip_while_running and (run := _unfinished_run(context.instance, job_name(trigger))):
            return dg.SkipReason(f"the {trigger} run {run} has not finished")
        try:
            now = context.scheduled_execution_time
            revision = start_revision(context.instance, workspace, trigger, now=now)
        except SourceError as error:
            return dg.SkipReason(f"the revision cannot be resolved: {error}")
        return list(run_requests(workspace, revision, f"{trigger}:{now.isoformat()}"))

    return schedule


def _unfinished_run(instance: dg.DagsterInstance, name: str) -> str | None:
    runs = instance.get_runs(dg.RunsFilter(job_name=name, statuses=_UNFINISHED), limit=1)
    return runs[0].run_id if runs else None


def _status(enabled: bool, kind: Callable[[str], Any]) -> Any:
    return kind("RUNNING" if enabled else "STOPPED")
