"""The schedule that clears away what dead steps left behind, and what it shares with the command line."""

import dagster as dg

from accel_ci.config.settings import Project
from accel_ci.defs.instance import open_instance
from accel_ci.instance.lease import LEASES
from accel_ci.pool.choose_pool import pool_for
from accel_ci.pool.leftovers import clear_leftovers
from accel_ci.pool.project_pool import Leftover


def clear_leftovers_here(project: Project, *, dry_run: bool = False) -> list[Leftover]:
    """Clear away what runs that are over left, on the instance of the UI and the daemon. Raises `PoolError`."""
    with open_instance(project) as instance:
        return _clear_leftovers(project, instance, dry_run=dry_run)


def _clear_leftovers(project: Project, instance: dg.DagsterInstance, *, dry_run: bool = False) -> list[Leftover]:
    def ended_at(run: str) -> float | None:
        record = instance.get_run_record_by_id(run)
        return record.end_time if record is not None and record.dagster_run.is_finished else None

    return clear_leftovers(pool_for(project.settings), project.home / LEASES, ended_at, dry_run=dry_run)


def leftovers_job(project: Project) -> dg.JobDefinition:
    """Make the job of the schedule; it fails when something could not be cleared away."""

    @dg.op(description="Pause machines whose lease has run out, remove containers without a driver, delete old Jobs.")
    def clear_away(context: dg.OpExecutionContext) -> None:
        found = _clear_leftovers(project, context.instance)
        for leftover in found:
            context.log.warning(leftover.describe())
        if problems := [leftover.describe() for leftover in found if leftover.problem is not None]:
            raise dg.Failure("; ".join(problems))

    return dg.GraphDefinition(
        "janitor",
        description="Clears away what steps that died left: running machines, containers, Jobs of a cluster and rounds.",
        node_defs=[clear_away],
    ).to_job(executor_def=dg.in_process_executor)


def leftovers_schedules(project: Project) -> list[dg.ScheduleDefinition]:
    """Make the schedule, where a pool or its instance can outlive a driver."""
    if not (pool_for(project.settings).outlives_driver or project.settings.pool.instance):
        return []
    schedule = dg.ScheduleDefinition(
        name="janitor_schedule",
        job=leftovers_job(project),
        cron_schedule="*/15 * * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Every quarter of an hour: what dead steps left behind is cleared away.",
    )
    return [schedule]
