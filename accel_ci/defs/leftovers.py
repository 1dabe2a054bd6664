"""The schedule that clears away what dead steps left behind, and what it shares with the command line."""

from typing import Any

import dagster as dg

from accel_ci.config.settings import KubernetesPoolSettings, Project
from accel_ci.defs.instance import open_instance
from accel_ci.instance.lease import LEASES
from accel_ci.pool.choose_pool import round_store
from accel_ci.pool.leftovers import Leftover, clear_cluster, clear_machine

CRON = "*/15 * * * *"


def clear_leftovers_of(project: Project, instance: dg.DagsterInstance, *, dry_run: bool = False) -> list[Leftover]:
    """Clear away what is left of runs that are over: of those in a cluster, the instance knows that. Raises `PoolError`."""
    settings = project.settings
    found = clear_machine(settings.pool, project.home / LEASES, dry_run=dry_run)
    if not isinstance(settings.pool, KubernetesPoolSettings):
        return found

    def ended_at(run: str) -> float | None:
        record = instance.get_run_record_by_id(run)
        return record.end_time if record is not None and record.dagster_run.is_finished else None

    store = round_store(settings.pool, settings)
    return found + clear_cluster(settings.pool, store, settings.backend.name, ended_at, dry_run=dry_run)


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
    """The schedule, for pools that outlive their driver: all but the local one without an instance."""
    pool = project.settings.pool
    if pool.kind == "local" and pool.instance is None:
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
