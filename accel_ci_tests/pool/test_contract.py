"""What every pool holds to, whatever its engine: one list of scenarios, run on each pool that there is here."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.pool_settings import DockerPoolSettings
from accel_ci.errors import PoolError
from accel_ci.model import Batch, Limits, WorkerSpec
from accel_ci.pool.docker.container import RUN_LABEL
from accel_ci.pool.docker.pool import DockerPool
from accel_ci.pool.environment import clean_environment
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.job import PROJECT_LABEL
from accel_ci.pool.kubernetes.pool import KubernetesPool
from accel_ci.pool.project_pool import ProjectPool
from accel_ci.rounds.driver import PoolRun, run_rounds
from accel_ci.rounds.round_bucket import RoundStore
from accel_ci.rounds.tally import OnProgress
from accel_ci_tests.conftest import wait_for
from accel_ci_tests.fixtures.bucket_pool import round_store
from accel_ci_tests.fixtures.cluster_pool import cluster_settings
from accel_ci_tests.fixtures.rounds import LOCAL_POOL, Write, batch, outcomes

DRIVER = """
import json, sys
from pathlib import Path
from accel_ci_tests.pool.test_contract import Ground, some_batches
given = json.loads(sys.argv[1])
ground = Ground(given["kind"], Path(given["root"]), Path(given["run_dir"]), image=given["image"])
ground.run(some_batches(given["count"], given["width"]))
"""


@dataclass
class Ground:
    """A pool with a suite to run and a folder to run it in."""

    kind: str
    root: Path
    run_dir: Path
    image: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    store: RoundStore | None = None

    @property
    def pool(self) -> ProjectPool:
        if self.kind == "local":
            return LOCAL_POOL
        if self.store is not None:
            return KubernetesPool(cluster_settings(), self.store, self.project, "contract")
        return DockerPool(DockerPoolSettings(kind="docker", card_environment="CARD", image=self.image or "", **self.options))

    def run(
        self,
        batches: Sequence[Batch],
        cards: Sequence[str] = ("0", "1"),
        *,
        environment: Mapping[str, str] | None = None,
        probe: tuple[str, ...] = (),
        max_rounds: int = 2,
        limits: Limits | None = None,
        on_progress: OnProgress = lambda *_: None,
    ) -> PoolRun:
        inherited = dict(os.environ) if self.kind == "local" else {}
        python = sys.executable if self.kind == "local" else "python3"
        environment = clean_environment(environment or {}, inherited=inherited)
        spec = WorkerSpec(python, str(self.root), environment, "CARD", probe)
        result = run_rounds(self.pool, batches, cards, spec, limits or Limits(), self.run_dir, on_progress, max_rounds)
        once = Counter((attempt.suite, attempt.test, attempt.round) for attempt in result.attempts)
        assert set(once.values()) <= {1}
        assert not self.containers()
        return result

    @property
    def project(self) -> str:
        """What tells the Jobs of this test apart."""
        return f"contract-{self.store.prefix.rpartition('/')[2]}" if self.store is not None else ""

    def containers(self) -> list[Any]:
        """What is there of this run."""
        if self.kind == "local":
            return []
        if self.store is not None:
            pods = Cluster(cluster_settings()).pods(f"{PROJECT_LABEL}={self.project}")
            return [pod for pod in pods if pod["status"].get("phase") == "Running"]  # the others' records go a little later
        import docker

        return list(docker.from_env().containers.list(all=True, filters={"label": f"{RUN_LABEL}={self.run_dir}"}))

    def kill_worker(self, worker: str) -> None:
        """Kill one worker, that one where workers are processes here, with all that the engine gives it."""
        if self.kind == "local":
            events = self.run_dir / "round-1" / "workers" / worker / "events.jsonl"
            os.kill(json.loads(events.read_text().splitlines()[0])["pid"], signal.SIGKILL)
        elif self.store is not None:
            Cluster(cluster_settings()).delete_pod(self.containers()[0]["metadata"]["name"])
        else:
            self.containers()[0].kill()

    def driver(self, count: int, width: int = 1) -> subprocess.Popen[bytes]:
        """A driver of its own process, for `count` tests of test_a.py of which every second holds `width` cards."""
        places = {"root": str(self.root), "run_dir": str(self.run_dir)}
        given = {"kind": self.kind, "image": self.image, "count": count, "width": width, **places}
        return subprocess.Popen([sys.executable, "-c", DRIVER, json.dumps(given)], cwd=Path(__file__).parents[2])

    def streamed(self) -> list[str]:
        """The tests whose attempts are in the workers' records."""
        paths = self.run_dir.glob("round-1*/workers/*/events.jsonl")
        lines = [line for path in paths for line in path.read_bytes().split(b"\n")[:-1]]
        return [event["test"] for event in map(json.loads, lines) if event["event"] == "attempt"]


def some_batches(count: int, width: int = 1) -> list[Batch]:
    return [batch(f"b{n}", f"test_a.py::test_n[{n}]", cards=width if n % 2 else 1) for n in range(count)]


@pytest.fixture(scope="session")
def docker_image() -> str:
    """An image with pytest, made from the one that `ACCEL_CI_DOCKER_IMAGE` names."""
    base = os.environ.get("ACCEL_CI_DOCKER_IMAGE")
    if not base:
        pytest.skip("ACCEL_CI_DOCKER_IMAGE is not set: an image with Python and pip in an engine that DOCKER_HOST names")
    import docker

    client = docker.from_env()
    file = f"FROM {base}\nENV CI=true IMAGE_OWN=1\nRUN python3 -m pip install -q pytest=={pytest.__version__}\n"
    image, _ = client.images.build(fileobj=io.BytesIO(file.encode()), rm=True)
    return str(image.id)


def _ground(request: pytest.FixtureRequest, kind: str, root: Path, tmp_path: Path) -> Iterator[Ground]:
    image = request.getfixturevalue("docker_image") if kind == "docker" else None
    ground = Ground(kind, root, tmp_path / "run", image=image)
    yield ground
    for container in ground.containers():
        container.remove(force=True)


@pytest.fixture(params=["local", "docker"])
def ground(request: pytest.FixtureRequest, root: Path, tmp_path: Path) -> Iterator[Ground]:
    """The pools whose workers share the driver's folder."""
    yield from _ground(request, request.param, root, tmp_path)


@pytest.fixture(params=["local", "docker", "kubernetes"])
def any_ground(request: pytest.FixtureRequest, root: Path, tmp_path: Path) -> Iterator[Ground]:
    """Each pool, for what all of them give: pods share no folder with the driver, and a device plugin gives them cards."""
    if request.param != "kubernetes":
        yield from _ground(request, request.param, root, tmp_path)
        return
    cluster_settings()
    store = round_store()
    ground = Ground("kubernetes", root, tmp_path / "run", store=store)
    yield ground
    cluster = Cluster(cluster_settings())
    for job in cluster.jobs(f"{PROJECT_LABEL}={ground.project}"):
        cluster.delete_job(job["metadata"]["name"])
    store.of_round(ground.project).clear()


@pytest.fixture
def docker_ground(docker_image: str, root: Path, tmp_path: Path) -> Ground:
    return Ground("docker", root, tmp_path / "run", image=docker_image)


def is_running(word: str) -> bool:
    """Whether any process of this kernel, in a container or not, has the word on its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes().split(b"\0"):
                return True
    return False


def slow(write: Write, count: int, free: int | None = None) -> list[str]:
    """Tests that take a moment; all but the first `free` ones do not end until there is a file `go` beside them."""
    write("test_a.py", f"""
        import pathlib, pytest, time
        @pytest.mark.parametrize("n", range({count}))
        def test_n(n):
            time.sleep(0.1)
            while n >= {count if free is None else free} and not pathlib.Path(__file__).with_name("go").exists():
                time.sleep(0.05)
        """)  # fmt: skip
    return [f"test_a.py::test_n[{n}]" for n in range(count)]


def test_all_pass_on_all_cards(any_ground: Ground, write: Write) -> None:
    shared = any_ground.run_dir / "round-1"
    for own, other in ("ab", "ba"):
        write(
            f"test_{own}.py",
            f"""
            import pathlib, time
            def test_1():
                if {any_ground.store is not None}:
                    time.sleep(1)  # pods share no folder to meet in
                    return
                pathlib.Path({str(shared / own)!r}).touch()
                while not pathlib.Path({str(shared / other)!r}).exists():
                    time.sleep(0.05)
            """,
        )
    result = any_ground.run([batch("b0", "test_a.py::test_1"), batch("b1", "test_b.py::test_1")])
    assert outcomes(result) == {"test_a.py::test_1": "passed", "test_b.py::test_1": "passed"}
    assert {attempt.card for attempt in result.attempts} == {"0", "1"}
    assert len(result.rounds) == 1


def test_a_test_that_passes_on_another_card(ground: Ground, write: Write) -> None:
    write("test_a.py", "import os\ndef test_1(): assert os.environ['CARD'] == '1'\ndef test_2(): pass\n")
    result = ground.run([batch("b0", "test_a.py::test_1", avoid=("1",)), batch("b1", "test_a.py::test_2")])
    assert outcomes(result) == {"test_a.py::test_1": "failed", "test_a.py::test_2": "passed"}
    assert outcomes(result, 2) == {"test_a.py::test_1": "passed"}


def test_crashes_hangs_and_floods_cost_one_test_each(any_ground: Ground, write: Write) -> None:
    write(
        "test_a.py",
        """
        import os, signal, time
        def test_exit(): os._exit(3)
        def test_segv(): os.kill(os.getpid(), signal.SIGSEGV)
        def test_hang(): time.sleep(1000)
        def test_flood():
            for _ in range(300):
                os.write(1, b"x" * 65536)
            assert False, "after the flood"
        def test_good(): pass
        """,
    )
    tests = [f"test_a.py::test_{name}" for name in ("exit", "segv", "hang", "flood", "good")]
    result = any_ground.run([batch("b0", *tests)], ["0"], max_rounds=1, limits=Limits(test_timeout_s=10))
    assert list(outcomes(result).values()) == ["crashed", "crashed", "timeout", "failed", "passed"]
    said = {attempt.test: attempt for attempt in result.attempts}
    assert "exit code 3" in (said[tests[0]].message or "")
    assert "SIGSEGV" in (said[tests[1]].message or "")
    assert len(said[tests[3]].output_tail or "") <= 16 * 1024


def test_leftovers_of_a_test_are_ended(any_ground: Ground, write: Write, tmp_path: Path) -> None:
    word = f"leftover-{os.getpid()}-{any_ground.kind}"
    write(
        "test_a.py",
        f"""
        import os, subprocess, sys
        def test_left():
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)", {word!r}])
                os._exit(0)
            os.wait()
        def test_after(): pass
        """,
    )
    result = any_ground.run([batch("b0", "test_a.py::test_left", "test_a.py::test_after")], ["0"])
    assert set(outcomes(result).values()) == {"passed"}
    assert not is_running(word)


def test_a_killed_worker_loses_nothing(any_ground: Ground, write: Write) -> None:
    tests = slow(write, 24)
    seen, killed = 0, False

    def on_progress(more: int, _: object) -> None:
        nonlocal seen, killed
        seen += more
        if seen >= 4 and not killed:
            killed = True
            any_ground.kill_worker("w0-0")

    result = any_ground.run([batch(f"b{n}", *tests[4 * n : 4 * n + 4]) for n in range(6)], on_progress=on_progress)
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert len(result.rounds) == 1


def test_a_killed_driver_leaves_nothing_running_and_is_resumed(ground: Ground, write: Write) -> None:
    tests = slow(write, 40, free=26)
    driver = ground.driver(40)
    wait_for(lambda: len(ground.streamed()) >= 6)
    driver.kill()
    driver.wait()
    wait_for(lambda: not any(container.status == "running" for container in ground.containers()))
    before = ground.streamed()
    (ground.root / "go").touch()
    result = ground.run(some_batches(40))
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert Counter(ground.streamed()) == Counter(tests)
    assert set(before) < set(tests)


def test_a_driver_that_is_killed_among_tests_of_several_cards_is_resumed(root: Path, tmp_path: Path, write: Write) -> None:
    ground = Ground("local", root, tmp_path / "run")
    tests = slow(write, 24)
    driver = ground.driver(24, width=2)
    wait_for(lambda: len(ground.streamed()) >= 12 + 3)
    driver.kill()
    driver.wait()
    result = ground.run(some_batches(24, width=2))
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert Counter(ground.streamed()) == Counter(tests)
    assert [attempt.card for attempt in result.attempts[12:]] == ["0,1"] * 12


def test_an_unhealthy_card_is_left_out(ground: Ground, write: Write) -> None:
    tests = slow(write, 6)
    probe = ("python", "-c", "import os, sys; sys.exit(os.environ['CARD'] == '1')")
    result = ground.run([batch(f"b{n}", test) for n, test in enumerate(tests)], probe=probe)
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert [card.healthy for card in result.cards] == [True, False]
    assert {attempt.card for attempt in result.attempts} == {"0"}


def test_tests_see_the_given_environment_alone(ground: Ground, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVER_SECRET", "hunter2")
    write("test_a.py", "import os\ndef test_1():\n    print(dict(os.environ))\n    assert False\n")
    result = ground.run([batch("b0", "test_a.py::test_1")], ["0"], environment={"GIVEN": "yes"}, max_rounds=1)
    [attempt] = result.attempts
    assert "'GIVEN': 'yes'" in (attempt.output_tail or "")
    assert "'CARD': '0'" in (attempt.output_tail or "")
    assert "hunter2" not in (attempt.output_tail or "")


# --- what Docker alone has ------------------------------------------------------------------------------------------


def test_memory_that_a_container_may_not_have(docker_ground: Ground, write: Write) -> None:
    docker_ground.options = {"memory": "100m"}
    write("test_a.py", "def test_1(): assert len(b'x' * 2**30)\ndef test_2(): pass\n")
    result = docker_ground.run([batch("b0", "test_a.py::test_1", "test_a.py::test_2")], ["0"], max_rounds=1)
    assert outcomes(result) == {"test_a.py::test_1": "crashed", "test_a.py::test_2": "passed"}
    assert "out of memory" in (result.attempts[0].message or "")


def test_a_container_is_closed_in(docker_ground: Ground, write: Write) -> None:
    """Sources cannot be written, nothing outside is reached, files are the caller's, a variable can be taken away."""
    docker_ground.options = {
        "environment": {"CI": None}, "shm_size": "8m", "pids_limit": 64, "devices": ("/dev/null:/dev/accel{card}",),
    }  # fmt: skip
    write(
        "test_a.py",
        f"""
        import os, pathlib, pytest, socket
        def test_sources():
            with pytest.raises(OSError):
                pathlib.Path("written").touch()
        def test_network():
            with pytest.raises(OSError):
                socket.create_connection(("192.0.2.1", 80), timeout=5)
        def test_environment():
            assert "CI" not in os.environ and os.environ["IMAGE_OWN"] == "1"
        def test_user():
            assert (os.getuid(), os.getgid()) == ({os.getuid()}, {os.getgid()})
            assert "CapEff:\\t0000000000000000" in open("/proc/self/status").read()
        def test_sizes():
            shm = os.statvfs("/dev/shm")
            assert shm.f_blocks * shm.f_frsize == 8 << 20
            children = []
            with pytest.raises(OSError):
                for _ in range(100):
                    child = os.fork()
                    if child == 0:
                        import time
                        time.sleep(1000)
                    children.append(child)
            for child in children:
                os.kill(child, 9)
                os.waitpid(child, 0)
        def test_devices():
            assert sorted(name for name in os.listdir("/dev") if name.startswith("accel")) == ["accel0", "accel1"]
        """,
    )
    tests = [f"test_a.py::test_{name}" for name in ("sources", "network", "environment", "user", "sizes", "devices")]
    result = docker_ground.run([batch("b0", *tests, cards=2)], max_rounds=1)
    assert {attempt.test: attempt.message for attempt in result.attempts} == dict.fromkeys(tests)


@pytest.mark.skipif(os.getuid() != 0, reason="root alone can give folders to another user")
def test_containers_of_another_user(docker_ground: Ground, write: Write, tmp_path: Path) -> None:
    docker_ground.options = {"user": "65534:65533"}
    write("test_a.py", "import os\ndef test_1(): assert (os.getuid(), os.getgid()) == (65534, 65533)\ndef test_2(): pass\n")
    result = docker_ground.run([batch("b0", "test_a.py::test_1"), batch("b1", "test_a.py::test_2")])
    assert outcomes(result) == {"test_a.py::test_1": "passed", "test_a.py::test_2": "passed"}
    assert {path.stat().st_uid for path in docker_ground.run_dir.glob("round-1/workers/*/events.jsonl")} == {65534}
    scratch = tmp_path / "scratch"
    scratch.mkdir(mode=0o700)
    spec = WorkerSpec("python3", str(docker_ground.root), {}, "CARD")
    assert docker_ground.pool.execute(["touch", str(scratch / "out")], spec, scratch, 60).status == 0
    assert (scratch / "out").stat().st_uid == 65534


def test_abandoned_containers_are_found_and_removed(docker_ground: Ground, write: Write) -> None:
    def leftovers(**options: Any) -> set[str]:
        found = docker_ground.pool.remove_leftovers(lambda run: None, **options)
        return {leftover.what.removeprefix("container ") for leftover in found}

    slow(write, 100)
    driver = docker_ground.driver(100)
    wait_for(docker_ground.streamed)
    names = {container.name for container in docker_ground.containers()}
    assert len(names) == 2
    assert not names & leftovers()
    driver.kill()
    driver.wait()
    assert names <= leftovers(dry_run=True)
    assert docker_ground.containers()
    assert names <= leftovers()
    assert not docker_ground.containers()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"image": "accel-ci.example/none:1"}, "no image 'accel-ci.example/none:1'; `docker pull`"),
        ({"devices": ("/dev/no-such-card",)}, "no-such-card"),
        ({"gpus": "card"}, "could not start a container"),
        ({"network": "no-such-network"}, "no-such-network"),
    ],
)  # fmt: skip
def test_what_the_engine_refuses_is_said(docker_ground: Ground, write: Write, options: dict[str, Any], said: str) -> None:
    image = options.pop("image", docker_ground.image)
    docker_ground = replace(docker_ground, image=image, options=options)
    write("test_a.py", "def test_1(): pass\n")
    with pytest.raises(PoolError, match=said):
        docker_ground.run([batch("b0", "test_a.py::test_1")])
    assert not docker_ground.containers()


def test_no_engine_is_said(root: Path, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    write("test_a.py", "def test_1(): pass\n")
    with pytest.raises(PoolError, match=r"no Docker engine answers at unix://.*none.sock .*set DOCKER_HOST"):
        Ground("docker", root, tmp_path / "run", image="any").run([batch("b0", "test_a.py::test_1")])


def test_a_command_runs_where_workers_run(any_ground: Ground, root: Path, write: Write, tmp_path: Path) -> None:
    write("test_a.py", "")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    python = sys.executable if any_ground.kind == "local" else "python3"
    spec = WorkerSpec(python, str(root), {}, "CARD")
    out = scratch / "out"
    code = f"import os; open({str(out)!r}, 'w').write(str(os.listdir({str(root)!r}))); print('done'); exit(3)"
    finished = any_ground.pool.execute([python, "-c", code], spec, scratch, 60)
    assert (finished.status, finished.output.strip()) == (3, "done")
    assert out.read_text() == "['test_a.py']"
