"""The schedules that clear away what is no longer needed, and what they share with the command line.

`janitor` clears away what dead steps left on machines and in engines, `prune` what the keep rules let go from the data
folder. Dagster's part is to know the runs and the partition keys.
"""

from datetime import datetime, timedelta, timezone

import dagster as dg

from accel_ci.config.settings import Project, Retention, Settings
from accel_ci.defs.instance import UNFINISHED, open_instance
from accel_ci.defs.liveness import end_dead_runs, is_over
from accel_ci.defs.location import location_tags, runs_of
from accel_ci.defs.partitions import revisions_name
from accel_ci.leftovers import clear_leftovers
from accel_ci.pool.choose_pool import pool_for
from accel_ci.pool.project_pool import Leftover
from accel_ci.retention.disk import Pruned
from accel_ci.retention.prune import RevisionRegister, prune
from accel_ci.workspace import Workspace

JANITOR, PRUNE = "janitor", "prune"


def upkeep_jobs(settings: Settings) -> tuple[str, ...]:
    """Return the jobs: the janitor where a pool or its instance can outlive a driver, and `prune`."""
    has_janitor = pool_for(settings).outlives_driver or settings.pool.instance or settings.rbe
    return (JANITOR, PRUNE) if has_janitor else (PRUNE,)


def upkeep_schedules(project: Project, executor: dg.ExecutorDefinition) -> list[dg.ScheduleDefinition]:
    """Make the schedules of the jobs, with the jobs."""

    @dg.op(description="Pause machines that nobody uses; end containers, Jobs and servers of Bazel whose run is over.")
    def clear_away(context: dg.OpExecutionContext) -> None:
        end_dead_runs(context.instance, project.home)
        found = clear_leftovers(project, is_over(context.instance))
        for leftover in found:
            context.log.warning(leftover.describe())
        if problems := [leftover.describe() for leftover in found if leftover.problem is not None]:
            raise dg.Failure("; ".join(problems))

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

    schedules = []
    if JANITOR in upkeep_jobs(project.settings):
        does = "Clears away what steps that died left: running machines, containers, Jobs of a cluster and rounds."
        when = "Every quarter of an hour: what dead steps left behind is cleared away."
        schedules.append(_schedule(project, JANITOR, clear_away, executor, does, "*/15 * * * *", when, runs=True))
    cron = (project.settings.retention or Retention()).cron
    does = "Removes builds that no keep rule holds, and what nothing refers to any more. Attempts are kept."
    when = f"Prunes the data folder by the rules in `retention`. At `{cron}` UTC."
    runs = project.settings.retention is not None
    return [*schedules, _schedule(project, PRUNE, remove_unused, executor, does, cron, when, runs=runs)]


def _schedule(
    project: Project,
    name: str,
    op: dg.OpDefinition,
    executor: dg.ExecutorDefinition,
    does: str,
    cron: str,
    when: str,
    *,
    runs: bool,
) -> dg.ScheduleDefinition:
    """Make a schedule of a job with one op; `does` describes the job, `when` the schedule."""
    tags, graph = location_tags(project.settings.location), dg.GraphDefinition(name, description=does, node_defs=[op])
    return dg.ScheduleDefinition(
        name=f"{name}_schedule",
        job=graph.to_job(executor_def=executor, tags=tags),
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING if runs else dg.DefaultScheduleStatus.STOPPED,
        description=when,
    )


def clear_leftovers_here(project: Project, *, dry_run: bool = False) -> list[Leftover]:
    """Clear away what runs that are over left, with the instance of the UI and the daemon."""
    with open_instance(project) as instance:
        return clear_leftovers(project, is_over(instance), dry_run=dry_run)


def prune_project(project: Project, *, dry_run: bool = False) -> list[Pruned]:
    """Prune with the instance of the UI and the daemon. Raises `AccelCiError`."""
    with open_instance(project) as instance:
        return _prune(project, instance, dry_run=dry_run)


def _prune(project: Project, instance: dg.DagsterInstance, *, dry_run: bool = False) -> list[Pruned]:
    now, location = datetime.now(timezone.utc), project.settings.location
    register = RevisionRegister(
        lambda: busy_revisions(instance, location, now),
        lambda key: instance.delete_dynamic_partition(revisions_name(location), key),
    )
    return prune(Workspace(project), register, now, dry_run=dry_run)


def busy_revisions(instance: dg.DagsterInstance, location: str | None, now: datetime) -> set[str]:
    """Return the revisions of a location with queued or running runs; one that nobody can see end counts for a day."""
    return {
        revision
        for record in runs_of(instance, location, statuses=UNFINISHED)
        if (revision := record.dagster_run.tags.get("dagster/partition/revision"))
        and (record.start_time is None or record.start_time > (now - timedelta(days=1)).timestamp())
    }
