"""Runs that are killed outright are seen dead: real commands and processes, and iterations of a real daemon."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from filelock import FileLock

from accel_ci.config.settings import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.instance import UNFINISHED, open_instance
from accel_ci.defs.liveness import LIVE_RUNS, end_dead_runs, living, lock_file
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import ROOT
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[ToyNight, subprocess.Popen[bytes]]]:
    """A project, and a run of its command line that waits for the cards."""
    night = make_toy_night(tmp_path)
    lock = Workspace(night.project).cards_lock
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        command = night.start("run", "manual", "--name", "waits")
        assert command.stdout is not None
        assert any(b"waiting for the cards" in line for line in iter(command.stdout.readline, b""))
        yield night, command
        command.kill()
        command.wait()
        command.stdout.close()


def statuses(instance: dg.DagsterInstance) -> list[dg.DagsterRunStatus]:
    return [run.status for run in instance.get_runs()]


def test_the_next_command_and_the_sensor_see_a_killed_run(waiting: tuple[ToyNight, subprocess.Popen[bytes]]) -> None:
    night, command = waiting
    project = night.project
    with open_instance(project) as instance:
        assert statuses(instance) == [dg.DagsterRunStatus.STARTED], "it lives"
    command.kill()
    command.wait()
    sensor = build_definitions(project).resolve_sensor_def("dead_runs_sensor")
    with dg.DagsterInstance.from_config(str(project.home / "dagster")) as instance:  # as the daemon opens it
        assert statuses(instance) == [dg.DagsterRunStatus.STARTED], "nobody has looked yet"
        answer = sensor.evaluate_tick(dg.build_sensor_context(instance))
        [run] = instance.get_runs()
        assert str(answer.skip_message) == f"reported as failed: {run.run_id}"
        assert run.status == dg.DagsterRunStatus.FAILURE
        assert not instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)), "its place in the queue is free"
        assert run.tags.get("dagster/will_retry") != "true", "a person runs the command again, not the daemon"
        [event] = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
        assert "was killed" in event.message
    assert not list((project.home / LIVE_RUNS).iterdir())


def test_a_command_reports_the_run_that_was_killed_before_it(waiting: tuple[ToyNight, subprocess.Popen[bytes]]) -> None:
    night, command = waiting
    command.kill()
    command.wait()
    night.accel_ci("prune", "--dry-run")
    with dg.DagsterInstance.from_config(str(night.project.home / "dagster")) as instance:
        assert statuses(instance) == [dg.DagsterRunStatus.FAILURE]


_A_RUN = """
import os, signal, sys
import dagster as dg
from pathlib import Path
from accel_ci.defs.liveness import living_executor

@dg.op
def work():
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)

@dg.job(executor_def=living_executor(Path(sys.argv[1])))
def launched():
    work()

def load():
    return launched

if __name__ == "__main__":
    with dg.DagsterInstance.from_config(sys.argv[1]) as instance:
        dg.execute_job(dg.reconstructable(load), instance=instance)
"""


@pytest.mark.parametrize(
    ("end", "status"), [("killed", dg.DagsterRunStatus.FAILURE), ("ended", dg.DagsterRunStatus.SUCCESS)]
)
def test_a_run_that_a_launcher_has_started_is_seen_too(tmp_path: Path, end: str, status: dg.DagsterRunStatus) -> None:
    """Such a run has a process of its own, and the executor of all jobs shows that it lives."""
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    script = tmp_path / "launched.py"
    script.write_text(_A_RUN)
    subprocess.run([sys.executable, script, tmp_path, end], cwd=ROOT, timeout=120, check=end == "ended")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        [run] = instance.get_runs()
        assert end_dead_runs(instance, tmp_path) == ([run.run_id] if end == "killed" else [])
        assert statuses(instance) == [status]
    assert not list((tmp_path / LIVE_RUNS).iterdir())


def test_only_a_run_whose_lock_is_there_and_free_is_dead(make_project: Callable[..., Project]) -> None:
    project = make_project()

    @dg.op
    def work() -> None:
        pass

    @dg.job
    def job() -> None:
        work()

    with open_instance(project) as instance:
        states = [status for status in UNFINISHED if status != dg.DagsterRunStatus.QUEUED]
        ids = [instance.create_run_for_job(job, status=status).run_id for status in states]
        assert end_dead_runs(instance, project.home) == [], "they have no lock here"
        with living(project.home, ids[0]):
            for run_id in ids[1:]:
                lock_file(project.home, run_id).touch()
            assert end_dead_runs(instance, project.home) == sorted(ids[1:])
        found = {run.run_id: run.status for run in instance.get_runs()}
        canceled = [run_id for run_id, status in found.items() if status == dg.DagsterRunStatus.CANCELED]
        assert canceled == [ids[states.index(dg.DagsterRunStatus.CANCELING)]]
        assert found[ids[0]] == states[0]
    assert not lock_file(project.home, ids[0]).exists()
