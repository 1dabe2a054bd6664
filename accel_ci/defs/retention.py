"""The schedule that prunes the data folder, and Dagster's part of it: unfinished runs and partition keys."""

from datetime import datetime, timedelta, timezone

import dagster as dg

from accel_ci.config.settings import Project, Retention
from accel_ci.defs.instance import open_instance
from accel_ci.defs.partitions import REVISIONS
from accel_ci.retention.disk import Pruned
from accel_ci.retention.prune import RevisionRegister, prune
from accel_ci.workspace import Workspace

_FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_LONGEST_RUN = timedelta(days=1)


def prune_project(project: Project, *, dry_run: bool = False) -> list[Pruned]:
    """Prune with the instance that the UI and the daemon use. Raises `AccelCiError`."""
    with open_instance(project) as instance:
        return _prune(project, instance, dry_run=dry_run)


def _prune(project: Project, instance: dg.DagsterInstance, *, dry_run: bool = False) -> list[Pruned]:
    now, revisions = datetime.now(timezone.utc), str(REVISIONS.name)
    register = RevisionRegister(
        lambda: _busy_revisions(instance, now), lambda key: instance.delete_dynamic_partition(revisions, key)
    )
    return prune(Workspace(project), register, now, dry_run=dry_run)


def _busy_revisions(instance: dg.DagsterInstance, now: datetime) -> set[str]:
    """Return the revisions with queued or running runs; a run that was killed stays STARTED and counts for a day."""
    unfinished = dg.RunsFilter(statuses=[status for status in dg.DagsterRunStatus if status not in _FINISHED])
    return {
        revision
        for record in instance.get_run_records(unfinished)
        if (revision := record.dagster_run.tags.get("dagster/partition/revision"))
        and (record.start_time is None or record.start_time > (now - _LONGEST_RUN).timestamp())
    }


def prune_schedule(project: Project) -> dg.ScheduleDefinition:
    """Make the schedule, which runs where `retention` is configured. Its job fails when something cannot be removed."""

    @dg.op(description="Remove what the section 'retention' leaves no use for.")
    def remove_unused(context: dg.OpExecutionContext) -> None:
        found = _prune(project, context.instance)
        stays = [item for item in found if item.problem is not None]
        for item in stays:
            context.log.warning(f"{item.kind} {item.name} stays: {item.problem}")
        freed = sum(item.size_bytes for item in found)
        context.log.info(f"{len(found)} things pruned, {freed:,} bytes freed")
        context.add_output_metadata({"things": len(found), "bytes": freed})
        if stays:
            raise dg.Failure(f"{len(stays)} of {len(found)} things cannot be removed; the run's log names them")

    job = dg.GraphDefinition(
        "prune",
        description="Removes builds that no keep rule holds, and what nothing refers to any more. Attempts are kept.",
        node_defs=[remove_unused],
    ).to_job(executor_def=dg.in_process_executor)
    configured = project.settings.retention
    cron = (configured or Retention()).cron
    return dg.ScheduleDefinition(
        name="prune_schedule",
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING if configured else dg.DefaultScheduleStatus.STOPPED,
        description=f"Prunes the data folder by the rules in `retention`. At `{cron}` UTC.",
    )
