"""The sensors that tell people: they gather what the manifests and Dagster know, and send what has changed."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from itertools import islice

import dagster as dg

# What the instance returns about sensors and schedules has no public names.
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, InstigatorType, TickStatus
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._utils.schedules import schedule_execution_time_iterator

from accel_ci.defs.instance import open_instance
from accel_ci.defs.location import runs_of
from accel_ci.defs.partitions import build_of_run
from accel_ci.defs.run_tags import TRIGGER_TAG
from accel_ci.defs.ticks import PREVIEW, failing_tick, is_preview
from accel_ci.defs.upkeep import upkeep_jobs
from accel_ci.errors import AccelCiError
from accel_ci.notify.current import current_troubles, hud_of, notify, notify_settings, preview
from accel_ci.notify.silence import tick_troubles
from accel_ci.notify.troubles import Trouble
from accel_ci.pipelines import INTEGRATION
from accel_ci.redaction import redact
from accel_ci.workspace import Workspace

_ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE)
_WATCHED = frozenset({"nightly", "intraday", "main", "sweep", "confirm"})
"""The triggers whose failed runs are told: those of a pull request are its author's, who sees them there."""

_TOLD_AS_INCIDENTS = frozenset({"all_passed"})
"""The checks that fail with the tests, whose failures are told as incidents."""

_SCHEDULED = timedelta(days=3)
"""The times of the nightly's schedule are looked at for so long."""


def notify_sensors(workspace: Workspace, checks: Sequence[dg.AssetCheckKey]) -> list[dg.SensorDefinition]:
    """Make the sensors, if the project has a section `notify`: one that looks now and then, and one for failed runs.

    `checks` are all checks of assets.
    """
    settings = workspace.project.settings.notify
    if settings is None:
        return []
    status = dg.DefaultSensorStatus.RUNNING if settings.enabled else dg.DefaultSensorStatus.STOPPED

    @dg.sensor(
        name="notify_sensor",
        minimum_interval_seconds=settings.check_every_seconds,
        description="Tells people of troubles that have begun or ended, once each, and sends the messages that wait.",
        default_status=status,
    )
    def notify_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        now = datetime.now(timezone.utc)
        with failing_tick("nobody can be told"):
            troubles = [*_gather(workspace, context.instance, now), *_of_checks(context.instance, checks)]
            if is_preview(context):
                titles = [message.title for message in preview(workspace, troubles, now)]
                return dg.SkipReason(redact(f"{PREVIEW}: a tick tells {'; '.join(titles) or 'nothing new'}"))
            return dg.SkipReason(redact(_tell(workspace, troubles, now)))

    @dg.run_failure_sensor(
        name="notify_run_failure_sensor",
        description="Tells people at once that a run has failed; several failures in a row are one trouble.",
        default_status=status,
    )
    def notify_run_failure_sensor(context: dg.RunFailureSensorContext) -> dg.SkipReason:
        now = datetime.now(timezone.utc)
        with failing_tick("nobody can be told"):
            return dg.SkipReason(redact(_tell(workspace, _of_runs(workspace, context.instance), now)))

    return [notify_sensor, notify_run_failure_sensor]


def all_troubles(workspace: Workspace, now: datetime) -> list[Trouble]:
    """Return all troubles of a project, those that Dagster knows included."""
    with open_instance(workspace.project) as instance:
        return _gather(workspace, instance, now)


def _tell(workspace: Workspace, troubles: Sequence[Trouble], now: datetime) -> str:
    done = notify(workspace, troubles, now)
    if done.has_failed:
        raise AccelCiError("; ".join(done.faults))
    words = [f"told: {message.title}" for message in done.messages]
    return "; ".join([*words, *done.issues, *done.faults]) or "nothing has changed"


def _gather(workspace: Workspace, instance: dg.DagsterInstance, now: datetime) -> list[Trouble]:
    settings, link = notify_settings(workspace), hud_of(workspace)
    runs = _of_runs(workspace, instance)
    failed = [trouble.last for trouble in runs if trouble.is_open]
    ticks = dict(_ticks(workspace, instance, settings.silence.failed_ticks))
    found = current_troubles(workspace, now, _times_of_nightly(workspace, instance, now), failed)
    return [*found, *runs, *tick_troubles(ticks, settings.silence, link)]


def _of_runs(workspace: Workspace, instance: dg.DagsterInstance) -> list[Trouble]:
    """The troubles of jobs: one is open while the newest run of the job that has ended is a failed one."""
    found, settings, addresses = list[Trouble](), workspace.project.settings, workspace.addresses
    pipelines = [pipeline for pipeline in workspace.pipelines if pipeline.configured(settings)]
    jobs = [job.name for each in pipelines for job in each.jobs if not _WATCHED.isdisjoint(job.triggers)]
    for job in (*jobs, *upkeep_jobs(settings)):
        record = next(runs_of(instance, settings.location, job=job, statuses=_ENDED), None)
        if record is None:
            continue
        run, build = record.dagster_run, build_of_run(record.dagster_run)
        has_failed = run.status == dg.DagsterRunStatus.FAILURE
        name, of_build = (build.name, f" of {build.name}") if build is not None else (run.run_id, "")
        link = f"{addresses.ui}/runs/{run.run_id}" if addresses is not None else None
        words = f"The run {run.run_id}{of_build} {'failed' if has_failed else 'has succeeded'}."
        found.append(Trouble(f"run-{job}", has_failed, "run", f"the job {job} fails", words, name, name, link=link))
    return found


def _of_checks(instance: dg.DagsterInstance, checks: Sequence[dg.AssetCheckKey]) -> list[Trouble]:
    """The troubles of assets whose checks fail in a run that has not failed itself: one for each asset."""
    chosen = [key for key in checks if key.name not in _TOLD_AS_INCIDENTS]
    newest = instance.event_log_storage.get_latest_asset_check_execution_by_key(chosen)
    outcomes: defaultdict[str, dict[str, bool]] = defaultdict(dict)
    runs = dict[str, str]()
    for key, record in newest.items():
        run = instance.get_run_by_id(record.run_id)
        if run is None or run.tags.get(TRIGGER_TAG) not in _WATCHED or run.status not in _ENDED:
            continue
        asset = key.asset_key.to_user_string()
        has_failed = record.status == AssetCheckExecutionRecordStatus.FAILED
        outcomes[asset][key.name] = has_failed and run.status != dg.DagsterRunStatus.FAILURE
        runs[asset] = run.run_id
    found = []
    for asset, failed in outcomes.items():
        names = sorted(name for name, has_failed in failed.items() if has_failed)
        words = f"In the run {runs[asset]}, {', '.join(names) or 'none'} of the checks of {asset} failed."
        found.append(Trouble(f"check-{asset}", bool(names), "run", f"checks of {asset} fail", words))
    return found


def _times_of_nightly(workspace: Workspace, instance: dg.DagsterInstance, now: datetime) -> list[datetime]:
    """The last times of the nightly's schedule, the oldest first; none before it was switched on, or while it is off."""
    job, settings = INTEGRATION.job_for("nightly"), workspace.project.settings.jobs.nightly
    begin = now - _SCHEDULED
    states = _states(workspace, instance, InstigatorType.SCHEDULE)
    state = next((each for each in states if each.name == f"{job.command}_schedule"), None)
    if state is None:
        return []
    if state.status == InstigatorStatus.STOPPED or (state.status != InstigatorStatus.RUNNING and not settings.enabled):
        return []
    since = getattr(state.instigator_data, "start_timestamp", None)
    times = schedule_execution_time_iterator(max(begin.timestamp(), since or 0.0), settings.cron, "UTC", True)
    found = []
    for at in islice(times, 10_000):
        if at > now:
            break
        found.append(at)
    return found


def _ticks(workspace: Workspace, instance: dg.DagsterInstance, count: int) -> Iterator[tuple[str, list[bool]]]:
    """The outcomes of the last ticks of each sensor and schedule that is on, the newest first."""
    for kind in (InstigatorType.SENSOR, InstigatorType.SCHEDULE):
        for state in _states(workspace, instance, kind):
            if state.status != InstigatorStatus.STOPPED:
                ticks = instance.get_ticks(
                    state.instigator_origin_id, state.selector_id, limit=count,
                    statuses=[TickStatus.SUCCESS, TickStatus.SKIPPED, TickStatus.FAILURE],
                )  # fmt: skip
                yield state.name, [tick.status != TickStatus.FAILURE for tick in ticks]


def _states(workspace: Workspace, instance: dg.DagsterInstance, kind: InstigatorType) -> list[InstigatorState]:
    """The sensors or schedules of this project that the daemon has seen."""
    location = workspace.project.settings.location
    return [
        state
        for state in instance.all_instigator_state(instigator_type=kind)
        if location is None or state.origin.repository_origin.code_location_origin.location_name == location
    ]
