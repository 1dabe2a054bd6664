"""The life of runs: each holds a lock file for as long as its process lives, so that others see when it was killed.

The kernel gives the lock up however the process ends. A run that has not finished and whose lock is free was killed, or its
machine went down; whoever looks next reports it to Dagster as failed, which frees its place in the queue. A run without a
lock file is unknown here, and left alone: it may belong to another data folder.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import dagster as dg
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.in_process import InProcessExecutor  # the public function has no way to wrap an execution

from accel_ci.pool.project_pool import IsOver
from accel_ci.storage.file_lock import is_locked, lock_for_life

LIVE_RUNS = "live_runs"  # the folder of the locks, in the data folder
_KILLED = (
    "The process of this run was killed, or its machine went down: its lock is free. "
    "`accel-ci resume`, or a re-execution, takes the run up where it stopped."
)
_held: dict[str, BinaryIO] = {}  # the locks of runs that this process was started for, by run


def lock_file(home: Path, run_id: str) -> Path:
    """The lock file of a run."""
    return home / LIVE_RUNS / f"{run_id}.lock"


@contextmanager
def living(home: Path, run_id: str) -> Iterator[None]:
    """Show that a run lives in the context, which it begins and ends in."""
    path = lock_file(home, run_id)
    with lock_for_life(path):
        yield
        path.unlink(missing_ok=True)


def living_executor(home: Path) -> dg.ExecutorDefinition:
    """Make the executor of all jobs: steps share the run's process, which shows that it lives until it ends."""

    class LivingExecutor(InProcessExecutor):
        def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
            path = lock_file(home, plan_context.run_id)
            if not is_locked(path):
                _held[plan_context.run_id] = lock_for_life(path)  # not for the execution alone: the last event follows it
            yield from super().execute(plan_context, execution_plan)

    def make(context: dg.InitExecutorContext) -> LivingExecutor:
        retries: Any = context.executor_config["retries"]
        return LivingExecutor(RetryMode.from_config(retries) or RetryMode.ENABLED)

    schema: Any = dg.in_process_executor.config_schema
    executor: dg.ExecutorDefinition = dg.executor(name="in_process", config_schema=schema)(make)
    return executor


def is_over(instance: dg.DagsterInstance) -> IsOver:
    """Make a function that returns whether a run has ended; None for a run that the instance does not know."""

    def ask(run_id: str) -> bool | None:
        run = instance.get_run_by_id(run_id)
        return run.is_finished if run is not None else None

    return ask


def end_dead_runs(instance: dg.DagsterInstance, home: Path) -> list[str]:
    """Report the runs that were killed to Dagster, and return their ids."""
    dead = []
    for path in sorted((home / LIVE_RUNS).glob("*.lock")):
        if is_locked(path):
            continue
        run = instance.get_run_by_id(path.stem)  # after the lock: whoever has given it up has reported its end
        if run is not None and not run.is_finished:
            dead.append(run.run_id)
            if run.status == dg.DagsterRunStatus.CANCELING:
                instance.report_run_canceled(run, _KILLED)
            else:
                instance.report_run_failed(run, _KILLED)
        path.unlink(missing_ok=True)
    return dead
