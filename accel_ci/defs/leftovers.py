"""The schedule that clears away what dead steps left in a cluster, and what it shares with the command line."""

from typing import Any

import dagster as dg

from accel_ci.config import KubernetesPoolSettings, Project
from accel_ci.defs.instance import open_instance
from accel_ci.pool.choose_pool import round_store
from accel_ci.pool.leftovers import Leftover, clear_leftovers

CRON = "*/15 * * * *"


def clear_leftovers_of(project: Project, instance: dg.DagsterInstance, *, dry_run: bool = False) -> list[Leftover]:
    """Clear away what is left of runs that this instance knows to be over. Raises `PoolError`."""
    settings = project.settings
    if not isinstance(settings.pool, KubernetesPoolSettings):
        return []

    def ended_at(run: str) -> float | None:
        record = instance.get_run_record_by_id(run)
        return record.end_time if record is not None and record.dagster_run.is_finished else None

    store = round_store(settings.pool, settings)
    return clear_leftovers(settings.pool, store, settings.backend.name, ended_at, dry_run=dry_run)


def clear_leftovers_here(project: Project, *, dry_run: bool = False) -> list[Leftover]:
    """The same with the instance that the UI and the daemon use. Raises `PoolError`."""
    with open_instance(project) as instance:
        return clear_leftovers_of(project, instance, dry_run=dry_run)


def leftovers_job(project: Project) -> dg.JobDefinition:
    """The job of the schedule."""

    @dg.op(description="Delete Jobs whose run is over, and rounds in the bucket that no URL opens any more.")
    def clear_away(context: dg.OpExecutionContext) -> None:
        for leftover in clear_leftovers_of(project, context.instance):
            context.log.warning(f"{leftover.what}: {leftover.why}: deleted")

    @dg.job(
        name="janitor",
        description="Clears away what steps that died left in the cluster and in the bucket of its rounds.",
        executor_def=dg.in_process_executor,
    )
    def janitor() -> None:
        clear_away()

    return janitor


def leftovers_schedules(project: Project) -> list[dg.ScheduleDefinition]:
    """The schedule, for pools that can leave something behind where no process of this machine keeps it."""
    if not isinstance(project.settings.pool, KubernetesPoolSettings):
        return []
    schedule: Any = dg.ScheduleDefinition(
        name="janitor_schedule",
        job=leftovers_job(project),
        cron_schedule=CRON,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Every quarter of an hour: what dead steps left in the cluster is deleted.",
    )
    return [schedule]
