"""The schedules and sensors that start jobs, and the sensor that shows in the HUD where a failed run stopped."""

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import dagster as dg

from accel_ci.config.settings import CronJob
from accel_ci.defs.instance import UNFINISHED
from accel_ci.defs.liveness import end_dead_runs
from accel_ci.defs.location import runs_of
from accel_ci.defs.partitions import build_of_run
from accel_ci.defs.quality import current_flakiness, refresh_hud
from accel_ci.defs.ticks import PREVIEW, fail_if_all_failed, failing_tick, is_preview
from accel_ci.defs.triggers import run_request, run_requests, start_confirmation, start_revision, tonights_revision
from accel_ci.errors import AccelCiError
from accel_ci.model import CONFIRM
from accel_ci.pipelines import INTEGRATION, Job, Pipeline
from accel_ci.quality.current_confirm import NothingToConfirmError, build_to_confirm, plan_reruns
from accel_ci.redaction import redact, without_credentials
from accel_ci.source.refs import resolve_source, resolved_sha
from accel_ci.source.watch import reason_to_wait
from accel_ci.workspace import Workspace


def build_schedules(workspace: Workspace, pipeline: Pipeline) -> list[dg.ScheduleDefinition]:
    """Make the schedules of a pipeline's jobs: one for each job that cron starts."""
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
        if job.skip_while_running:
            end_dead_runs(context.instance, workspace.project.home)
            location = workspace.project.settings.location
            for record in runs_of(context.instance, location, job=job.name, statuses=UNFINISHED):
                return dg.SkipReason(f"the {job.command} run {record.dagster_run.run_id} has not finished")
        if is_preview(context):
            variants = ", ".join(job.variants(workspace.project.settings))
            return dg.SkipReason(f"{PREVIEW}: a tick resolves a revision and starts {job.name} for {variants}")
        now = context.scheduled_execution_time
        with failing_tick("the revision cannot be resolved"):
            revision = tonights_revision(workspace.manifests, now) if pipeline.follows else None
            revision = revision or start_revision(context.instance, workspace, job.triggers[0], now=now)
        return list(run_requests(workspace, job, revision, f"{job.command}:{now.isoformat()}"))

    return schedule


def build_sensors(workspace: Workspace) -> list[dg.SensorDefinition]:
    """Make the sensors: for upstream's commits, which start the job `main`, for failures to confirm, and for failed runs."""
    project, job = workspace.project, INTEGRATION.job_for("main")
    settings, upstream = project.settings.jobs.main, project.settings.upstream
    watched = without_credentials(upstream.repository)

    @dg.sensor(
        name="upstream_main_sensor",
        job_name=job.name,
        minimum_interval_seconds=settings.check_every_seconds,
        description=f"{job.description} Watches {upstream.ref} of {watched}; the cursor is the last SHA.",
        default_status=dg.DefaultSensorStatus.RUNNING if settings.enabled else dg.DefaultSensorStatus.STOPPED,
    )
    def upstream_main_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        with failing_tick("upstream cannot be asked"):
            # Dagster allows a tick 60 seconds, which include the start of its runs.
            limit = min(project.settings.limits.git_seconds, 30)
            sha = resolved_sha(resolve_source(upstream.repository, upstream.ref, ".", project.root, timeout_s=limit))
            now, interval = datetime.now(timezone.utc), timedelta(minutes=settings.minimum_interval_minutes)
            last = next(runs_of(context.instance, project.settings.location, job=job.name), None)
            last_started = last.create_timestamp if last else None
            if (reason := reason_to_wait(context.cursor, sha, last_started, now, interval)) is not None:
                return dg.SkipReason(reason)
            if is_preview(context):
                return dg.SkipReason(
                    f"{PREVIEW}: a tick resolves a revision of {upstream.ref} at {sha} and starts {job.name}"
                )
            revision = start_revision(context.instance, workspace, "main", now=now, upstream_sha=sha)
        requests = list(run_requests(workspace, job, revision, f"{job.command}:{sha}"))
        return dg.SensorResult(run_requests=requests, cursor=sha)

    @dg.run_failure_sensor(
        name="stopped_build_sensor",
        description="Shows in the HUD at which stage a build stopped.",
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def stopped_build_sensor(context: dg.RunFailureSensorContext) -> None:
        if (build := build_of_run(context.dagster_run)) is not None and workspace.manifests.share.is_shared:
            workspace.manifests.end_run(build, context.dagster_run.run_id, datetime.now(timezone.utc))
        refresh_hud(workspace, current_flakiness(workspace))

    @dg.sensor(
        name="dead_runs_sensor",
        minimum_interval_seconds=30,
        description="Reports runs whose process was killed as failed, so that they hold no place in the queue.",
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def dead_runs_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        dead = end_dead_runs(context.instance, project.home)
        return dg.SkipReason(f"reported as failed: {', '.join(dead)}" if dead else "every run that has begun lives")

    return [upstream_main_sensor, _confirm_sensor(workspace), stopped_build_sensor, dead_runs_sensor]


def _confirm_sensor(workspace: Workspace) -> dg.SensorDefinition:
    project, job = workspace.project, INTEGRATION.job_for(CONFIRM)
    settings = project.settings.quality.confirm

    @dg.sensor(
        name="confirm_sensor",
        job_name=job.name,
        minimum_interval_seconds=settings.check_every_seconds,
        description=f"{job.description} Looks at the newest build of each variant; the cursor has the runs it asked for.",
        default_status=dg.DefaultSensorStatus.RUNNING if settings.enabled else dg.DefaultSensorStatus.STOPPED,
    )
    def confirm_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        asked: dict[str, str] = json.loads(context.cursor) if context.cursor else {}  # builds by variant
        requests, reasons, errors = [], [], []
        variants = job.variants(project.settings)
        for variant in variants:
            try:
                build = build_to_confirm(workspace, variant, asked.get(variant))
                if is_preview(context):
                    return dg.SkipReason(f"{PREVIEW}: in {build.name}, {plan_reruns(workspace, build).in_words()}")
                wanted = start_confirmation(context.instance, workspace, build)
            except NothingToConfirmError as error:
                reasons.append(redact(f"{variant}: {error}"))
                continue
            except AccelCiError as error:
                errors.append(f"{variant}: {error}")
                continue
            asked[variant] = wanted.name
            requests.append(run_request(job, wanted, f"{job.command}:{wanted.name}"))
        fail_if_all_failed("no failures can be confirmed", errors, len(variants))
        if not requests:
            return dg.SkipReason("; ".join([*reasons, *map(redact, errors)]))
        return dg.SensorResult(run_requests=requests, cursor=json.dumps(asked))

    return confirm_sensor
