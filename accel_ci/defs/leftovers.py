"""The schedule that clears away what dead steps left behind, and what it shares with the command line."""

from typing import Any

import dagster as dg

from accel_ci.config.settings import Project
from accel_ci.defs.instance import open_instance
from accel_ci.instance.lease import LEASES
from accel_ci.pool.choose_pool import pool_for
from accel_ci.pool.project_pool import Leftover, clear_leftovers

CRON = "*/15 * * * *"


def clear_leftovers_of(project: Project, instance: dg.DagsterInstance, *, dry_run: bool = False) -> list[Leftover]:
    """Clear away what runs that are over left; the instance knows when a run ended. Raises `PoolError`."""

    def ended_at(run: str) -> float | None:
        record = instance.get_run_record_by_id(run)
        return record.end_time if record is not None and record.dagster_run.is_finished else None

    return clear_leftovers(pool_for(project.settings), project.home / LEASES, ended_at, dry_run=dry_run)


def clear_leftovers_here(project: Project, *, dry_run: bool = False) -> list[Leftover]:
    """The same with the instance that the UI and the daemon use. Raises `PoolError`."""
    with open_instance(project) as instance:
        return clear_leftovers_of(project, instance, dry_run=dry_run)


def leftovers_job(project: Project) -> dg.JobDefinition:
    """The job of the schedule; it fails when something could not be cleared away."""

    @dg.op(description="Pause machines whose lease has run out, remove containers without a driver, delete old Jobs.")
    def clear_away(context: dg.OpExecutionContext) -> None:
        found = clear_leftovers_of(project, context.instance)
        for leftover in found:
            context.log.warning(leftover.describe())
        problems = [leftover.describe() for leftover in found if leftover.problem is not None]
        if problems:
            raise dg.Failure("; ".join(problems))

    @dg.job(
        name="janitor",
        description="Clears away what steps that died left: running machines, containers, Jobs of a cluster and rounds.",
        executor_def=dg.in_process_executor,
    )
    def janitor() -> None:
        clear_away()

    return janitor


def leftovers_schedules(project: Project) -> list[dg.ScheduleDefinition]:
    """The schedule, where a pool or its instance can outlive a driver."""
    if not (pool_for(project.settings).outlives_driver or project.settings.pool.instance):
        return []
    schedule: Any = dg.ScheduleDefinition(
        name="janitor_schedule",
        job=leftovers_job(project),
        cron_schedule=CRON,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Every quarter of an hour: what dead steps left behind is cleared away.",
    )
    return [schedule]
