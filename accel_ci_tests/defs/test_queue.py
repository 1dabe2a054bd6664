"""Dagster's queue of runs with the limits of `dagster.yaml`: a real instance, and iterations of a real daemon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

from accel_ci.config.settings import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.partitions import partition_key
from accel_ci.defs.run_tags import TRIGGER_TAG
from accel_ci.model import Build
from accel_ci_tests.fixtures.checkout import ROOT
from accel_ci_tests.fixtures.project import minimal_config

A, B = Build("nightly-20261127", "py3"), Build("nightly-20261127", "py4")


@pytest.fixture
def definitions(make_project: Callable[..., Project]) -> dg.Definitions:
    variants = [{**minimal_config()["variants"][0], "name": name} for name in ("py3", "py4")]  # type: ignore[index]
    return build_definitions(make_project(variants=variants, rbe={"targets": ["//..."]}))


@contextmanager
def instance_by(text: str, home: Path) -> Iterator[dg.DagsterInstance]:
    """Make an instance that starts nothing for its runs."""
    home.mkdir()
    (home / "dagster.yaml").write_text(
        f"{text}\nrun_launcher: {{module: dagster._core.test_utils, class: MockedRunLauncher}}\n"
    )
    with dg.DagsterInstance.from_config(str(home)) as made:
        yield made


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance by our file, but for two settings: ten runs may work at once, and nothing is started for them."""
    text = (ROOT / "accel_ci" / "dagster.yaml").read_text()
    assert text.count("max_concurrent_runs: 1\n") == 1
    with instance_by(text.replace("max_concurrent_runs: 1\n", "max_concurrent_runs: 10\n"), tmp_path / "dagster") as made:
        yield made


@pytest.mark.parametrize("location", [None, "torch-npu"])
def test_the_nightly_does_not_wait_for_a_storm_of_pull_requests(
    make_project: Callable[..., Project], location: str | None, tmp_path: Path
) -> None:
    deployed = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "base" / "dagster.yaml").read_text())
    definitions = build_definitions(make_project(**({"location": location} if location else {})))
    with instance_by(yaml.safe_dump({"concurrency": deployed["concurrency"]}), tmp_path / "dagster") as instance:

        def ask_for(job: str, number: int) -> str:
            return queue_run(definitions, instance, job, Build(f"{job}-{number}", "py3"))

        storm = [ask_for(job, number) for job, runs in {"pr": 20, "main": 5, "sweep": 2}.items() for number in range(runs)]
        nightly = ask_for("nightly_integration", 1)
        waiting = runs_left_in_the_queue(instance)
        assert nightly not in waiting
        started = [run for run in storm if run not in waiting]
        triggers = Counter(instance.get_run_by_id(run).tags[TRIGGER_TAG] for run in started)  # type: ignore[union-attr]
        assert triggers == {"pr": 6, "main": 4, "sweep": 1}


def queue_run(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    job: str,
    build: Build,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.QUEUED,
) -> str:
    definition = definitions.resolve_job_def(job)
    tags = {**definition.run_tags, **definition.get_tags_for_partition_key(partition_key(build), None)}
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("accel_ci"), "__repository__"), job)
    return instance.create_run_for_job(definition, tags=tags, status=status, remote_job_origin=origin).run_id


def runs_left_in_the_queue(instance: dg.DagsterInstance) -> set[str]:
    """Let the daemon take runs off the queue once, and return those that stay."""
    with WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as workspace:
        list(QueuedRunCoordinatorDaemon(interval_seconds=1).run_iteration(workspace))
    return {run.run_id for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED]))}


def test_a_second_run_of_a_build_and_pipeline_stays_in_the_queue(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    ask_for, queued = partial(queue_run, definitions, instance), partial(runs_left_in_the_queue, instance)
    first, second = ask_for("nightly_integration", A), ask_for("intraday", A)
    others = {ask_for("nightly_rbe", A), ask_for("nightly_integration", B)}
    assert queued() == {second}
    launched = {run.run_id for run in instance.run_launcher.queue()}  # type: ignore[attr-defined]
    assert launched == {first, *others}
    instance.report_run_failed(instance.get_run_by_id(first))  # type: ignore[arg-type]
    assert queued() == set()
    by_hand = ask_for("nightly_rbe", B, dg.DagsterRunStatus.STARTED)  # as the command line does, beside the queue
    behind_it = ask_for("nightly_rbe", B)
    assert queued() == {behind_it}
    instance.report_run_failed(instance.get_run_by_id(by_hand))  # type: ignore[arg-type]
    assert queued() == set()
