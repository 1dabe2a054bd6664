"""A nightly that is killed outright during its tests: it is seen dead, taken up, and what it left in an engine is ended."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dagster as dg
import pytest

from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.instance import UNFINISHED
from accel_ci.model import Build, Ledger
from accel_ci.pool.docker.containers import RUN_LABEL
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.job import PROJECT_LABEL
from accel_ci.results.store import open_results
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.bench import assert_balanced, make_bench
from accel_ci_tests.fixtures.bucket_pool import round_store
from accel_ci_tests.fixtures.cluster_pool import cluster_settings
from accel_ci_tests.fixtures.machine import Machine
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.project import minimal_config
from accel_ci_tests.fixtures.stored_attempts import to_attempts
from accel_ci_tests.fixtures.suite import streamed
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night

Kind = Literal["docker", "kubernetes", "instance"]
KINDS: tuple[Kind, ...] = ("docker", "kubernetes", "instance")

TESTS = {
    "backend/tests/smoke/test_smoke.py": "def test_smoke():\n    pass\n",
    "backend/tests/unit/test_unit.py": """
import time
import pytest


@pytest.mark.parametrize("n", range(40))
def test_n(n):
    time.sleep(0.5)
    assert n % 10
""",
}


@dataclass(frozen=True)
class Night:
    """A nightly on an engine; `left` returns what the engine has of it."""

    toy: ToyNight
    left: Callable[[], list[str]]

    @property
    def build(self) -> Build:
        """The nightly's build."""
        revision = ManifestStore(self.toy.project.home).newest_revision("nightly", "")
        assert revision is not None
        return Build(revision.key, "py3")

    @property
    def begun(self) -> dict[str, str]:
        """When each test of the device stage began, by test, as its workers have streamed it."""
        folders = (self.toy.project.home / "runs").glob("nightly-*/py3/device")
        return {found.test: found.started_at for folder in folders for found in streamed(folder) if found.round == 1}

    def kill(self) -> dict[str, str]:
        """Start the nightly and kill its command during its device stage; return `begun`."""
        command = subprocess.Popen(
            self.toy.command("run", "nightly"), cwd=self.toy.folder, env=self.toy.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_for(lambda: len(self.begun) >= 5 or command.poll() is not None, 600, every_s=0.2)
            assert command.poll() is None, "it ended before it was killed"
            assert self.left()
        finally:
            command.kill()
            command.wait()
        return self.begun

    def statuses(self) -> list[str]:
        """The statuses of the runs, the newest first."""
        with dg.DagsterInstance.from_config(str(self.toy.project.home / "dagster")) as instance:  # as the daemon opens it
            return [run.status.value for run in instance.get_runs()]


@pytest.fixture
def make_night(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Kind], Night]:
    """Make a nightly on an engine; skip the test where there is none."""

    def make(kind: Kind) -> Night:
        name = f"toy-{uuid.uuid4().hex[:8]}"
        backend = {**minimal_config()["backend"], "name": name, "entry_points": ["torch.backends:toy"]}  # type: ignore[dict-item]
        engine = {"docker": _docker, "kubernetes": _kubernetes, "instance": _instance}[kind]
        pool, left = engine(request, tmp_path, name)
        return Night(make_toy_night(tmp_path / "night", TESTS, backend=backend, pool={"cards": 2, **pool}), left)

    return make


def _docker(request: pytest.FixtureRequest, folder: Path, _: str) -> tuple[dict[str, Any], Callable[[], list[str]]]:
    pool = {"kind": "docker", "card_environment": "TOY_CARD", "image": request.getfixturevalue("docker_image")}

    def clear() -> None:
        for container in _containers_below(folder):
            container.remove(force=True)

    request.addfinalizer(clear)
    return pool, lambda: [str(container.name) for container in _containers_below(folder)]


def _kubernetes(request: pytest.FixtureRequest, _: Path, project: str) -> tuple[dict[str, Any], Callable[[], list[str]]]:
    settings, store = cluster_settings(), round_store()
    cluster = Cluster(settings)
    pool = {
        "kind": "kubernetes", "image": settings.image, "resource": settings.resource, "host_network": True,
        "bucket": {"bucket": store.bucket, "prefix": store.prefix, "endpoint": store.endpoint},
    }  # fmt: skip

    def left() -> list[str]:
        mine = f"{PROJECT_LABEL}={project}"
        return [found["metadata"]["name"] for found in (*cluster.jobs(mine), *cluster.pods(mine))]

    def clear() -> None:
        for job in cluster.jobs(f"{PROJECT_LABEL}={project}"):
            cluster.delete_job(job["metadata"]["name"])
        store.of_round(project).clear()

    request.addfinalizer(clear)
    return pool, left


def _instance(request: pytest.FixtureRequest, folder: Path, _: str) -> tuple[dict[str, Any], Callable[[], list[str]]]:
    (folder / "machine").mkdir()
    machine = Machine(folder / "machine")
    start, pause, ready = ([*machine.command, word] for word in ("start", "pause", "ready"))
    request.addfinalizer(lambda: subprocess.run(pause, check=True))
    pool = {"card_environment": "TOY_CARD", "instance": {"start": start, "pause": pause, "ready": ready}}
    return pool, lambda: ["machine"] if machine.runs() else []


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_nightly_is_seen_dead_and_taken_up(make_night: Callable[[Kind], Night], kind: Kind) -> None:
    night = make_night(kind)
    kept = night.kill()
    assert night.statuses() == ["STARTED"], "nobody has looked yet"
    sensor = build_definitions(night.toy.project).resolve_sensor_def("dead_runs_sensor")
    with dg.DagsterInstance.from_config(str(night.toy.project.home / "dagster")) as instance:
        sensor.evaluate_tick(dg.build_sensor_context(instance))
        assert not instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)), "its place in the queue is free"
    assert night.statuses() == ["FAILURE"]
    output = night.toy.accel_ci("run", "nightly")
    assert "attempts were carried over from the run that stopped" in output
    assert night.statuses() == ["SUCCESS", "FAILURE"]
    manifests, build, store = ManifestStore(night.toy.project.home), night.build, open_results(night.toy.project)
    ledger = manifests.read(manifests.path("ledger", build.revision, build.variant), Ledger)
    assert (ledger.expected, +Counter(ledger.counts)) == (41, {"passed": 37, "failed": 4})
    attempts = [each for stored in store.suites(build=build) for each in to_attempts(store.read(stored))]
    first = [each for each in attempts if each.suite == "unit" and each.round == 1]
    assert Counter(each.test for each in first) == Counter({each.test for each in first}), "each ran once"
    assert len(first) == 40
    assert kept.items() <= {each.test: each.started_at.isoformat() for each in first if each.started_at}.items()
    wait_for(lambda: not night.left())


@pytest.mark.skipif(not os.environ.get("ACCEL_CI_LONG"), reason="a minute each: set ACCEL_CI_LONG=1 (make test-nightly)")
@pytest.mark.parametrize("by", ["janitor", "the next build"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_killed_nightly_left_is_ended(make_night: Callable[[Kind], Night], kind: Kind, by: str) -> None:
    night = make_night(kind)
    night.kill()
    if by == "janitor":
        assert "would be" in night.toy.accel_ci("janitor", "--dry-run")
        assert night.left(), "nothing was done"
        said = night.toy.accel_ci("janitor")
    else:
        said = night.toy.accel_ci("run", "manual", "--name", "other")
    ended = {
        "docker": "its driver is gone: removed", "kubernetes": "is over: deleted", "instance": "its user has ended: paused"
    }  # fmt: skip
    assert ended[kind] in said
    assert night.statuses()[-1] == "FAILURE", "the command has reported it"
    wait_for(lambda: not night.left())
    assert not night.toy.accel_ci("janitor").strip()


@pytest.mark.skipif(not os.environ.get("ACCEL_CI_LONG"), reason="builds an image with PyTorch: set ACCEL_CI_LONG=1")
def test_a_killed_nightly_of_the_example_in_containers_of_its_own_image(base: str, tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    environment = {"OMP_NUM_THREADS": "1", "EMU_CARDS": "2"}
    probe = ["python", "-m", "torch_emu.health"]
    pool = {"kind": "docker", "card_environment": "EMU_VISIBLE_CARDS", "cards": 2, "health_probe": probe}
    bench.configure(image={"base": base}, pool={**pool, "environment": environment}, limits={"test_timeout_seconds": 120})

    def begun() -> dict[tuple[str, str], str]:
        folders = (bench.project.home / "runs").glob("*/*/device")
        found = (each for folder in folders for each in streamed(folder) if each.round == 1)
        return {(each.suite, each.test): each.started_at for each in found}

    command = bench.start("run", "nightly")
    try:
        wait_for(lambda: len(begun()) >= 5 or command.poll() is not None, 3000, every_s=0.2)
        assert command.poll() is None, "it ended before it was killed"
        assert _containers_below(tmp_path)
    finally:
        command.kill()
        command.wait()
    kept = begun()
    output = bench.accel_ci("run", "nightly")
    assert "attempts were carried over from the run that stopped" in output
    assert not _containers_below(tmp_path)
    [build] = ManifestStore(bench.project.home).list_builds()
    assert_balanced(bench, build)
    counts = bench.ledger(build).counts
    assert counts["not_run"] == counts["infra"] == 0
    stored = {(a.suite, a.test): a.started_at.isoformat() for a in bench.attempts(build) if a.round == 1 and a.started_at}
    assert kept.items() <= stored.items(), "attempts streamed before the kill are kept and were not run again"
    assert len(stored) > len(kept)


def _containers_below(folder: Path) -> list[Any]:
    """Return the containers of runs whose folders are below a folder."""
    import docker

    found = docker.from_env().containers.list(all=True, filters={"label": RUN_LABEL}, ignore_removed=True)
    return [container for container in found if container.labels[RUN_LABEL].startswith(f"{folder}/")]
