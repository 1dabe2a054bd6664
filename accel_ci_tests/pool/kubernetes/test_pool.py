"""The Kubernetes pool on a real cluster and a real S3 server.

`KUBECONFIG` names the cluster, `ACCEL_CI_CLUSTER_IMAGE` an image with Python and pytest in reach of it, and
`ACCEL_CI_CLUSTER_RESOURCE` an extended resource of which 4 are free. Pods use their node's network, for a test's S3 server
listens on loopback.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.config.settings import Project
from accel_ci.errors import PoolError
from accel_ci.model import Batch, Build, Limits, WorkerSpec
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.pool import KubernetesPool
from accel_ci.pool.runner_package import build_runner
from accel_ci.results.questions import failed_attempts
from accel_ci.results.store import ResultsStore
from accel_ci.rounds.driver import PoolRun, run_rounds
from accel_ci.rounds.round_bucket import RoundStore
from accel_ci.rounds.tally import OnProgress
from accel_ci.steps.device_tests import StageContext
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci_tests.conftest import wait_for
from accel_ci_tests.fixtures.bucket_pool import round_store
from accel_ci_tests.fixtures.cluster_pool import cluster_settings
from accel_ci_tests.fixtures.rounds import Write, batch, outcomes
from accel_ci_tests.pool.test_kills import streamed
from accel_ci_tests.steps.test_device_tests import run_device

DRIVER = """
import os, sys
from pathlib import Path
from accel_ci.model import Limits, WorkerSpec
from accel_ci_tests.fixtures.bucket_pool import round_store
from accel_ci_tests.fixtures.rounds import batch
from accel_ci_tests.pool.kubernetes.test_pool import Ground
root, run_dir, count, prefix, project = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
ground = Ground(Path(root), run_dir, round_store(prefix=prefix), project)
ground.run([batch(f"b{n}", f"test_a.py::test_n[{n}]") for n in range(count)], ["0", "1"])
"""


@dataclass
class Ground:
    """A pool on the cluster, with a name of its own there."""

    root: Path
    run_dir: Path
    store: RoundStore
    project: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> KubernetesPoolSettings:
        return cluster_settings(**self.options)

    @property
    def pool(self) -> KubernetesPool:
        return KubernetesPool(self.settings, self.store, self.project, "run-of-a-test")

    @property
    def spec(self) -> WorkerSpec:
        return WorkerSpec("python3", str(self.root), {"GIVEN": "yes"}, "")

    def run(
        self,
        batches: list[Batch],
        cards: list[str],
        on_progress: OnProgress = lambda *_: None,
        max_rounds: int = 1,
    ) -> PoolRun:
        """Run batches by a driver that knows nothing of those before but what is in the folder."""
        return run_rounds(self.pool, batches, cards, self.spec, Limits(), self.run_dir, on_progress, max_rounds)

    def start_driver(self, count: int) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-c",
            DRIVER,
            str(self.root),
            str(self.run_dir),
            str(count),
            self.store.prefix,
            self.project,
        ]
        return subprocess.Popen(command, cwd=Path(__file__).parents[3], stderr=subprocess.DEVNULL)

    def jobs(self) -> list[dict[str, Any]]:
        return Cluster(self.settings).jobs(f"accel-ci/project={self.project}")

    def pods(self) -> list[dict[str, Any]]:
        return Cluster(self.settings).pods(f"accel-ci/project={self.project}")


@pytest.fixture
def ground(root: Path, tmp_path: Path) -> Iterator[Ground]:
    cluster_settings()
    store = round_store()
    ground = Ground(root, tmp_path / "v" / "run", store, f"t{store.prefix.rpartition('/')[2]}")
    yield ground
    for job in ground.jobs():
        Cluster(ground.settings).delete_job(job["metadata"]["name"])
    store.of_round(ground.project).clear()


def slow(write: Write, count: int, seconds: float = 0.3) -> list[str]:
    write("test_a.py", f"""
        import pytest, time
        @pytest.mark.parametrize("n", range({count}))
        def test_n(n): time.sleep({seconds})
        """)  # fmt: skip
    return [f"test_a.py::test_n[{n}]" for n in range(count)]


def test_a_suite_on_four_pods_of_which_one_is_killed(ground: Ground, write: Write) -> None:
    tests = [*slow(write, 60), "test_b.py::test_environment"]
    write(
        "test_b.py",
        """
        import os
        def test_environment():
            assert os.environ["GIVEN"] == "yes" and os.getuid() == 1000
            assert not [name for name, value in os.environ.items() if "X-Amz" in value or name.startswith("ACCEL_CI")]
            assert not os.path.exists("/var/run/secrets/kubernetes.io")
            try:
                text = open("/proc/1/environ").read()
            except OSError:
                text = ""
            assert "X-Amz" not in text
        """,
    )
    killed: list[str] = []

    def on_progress(*_: object) -> None:
        if not killed and len(streamed(ground.run_dir)) > 15:
            running = [pod for pod in ground.pods() if pod["status"].get("phase") == "Running"]
            assert len(running) == 4
            assert {pod["metadata"]["labels"]["accel-ci/run"] for pod in running} == {"run-of-a-test"}
            killed.append(running[0]["metadata"]["name"])
            Cluster(ground.settings).delete_pod(killed[0])

    batches = [batch(f"b{n}", *tests[4 * n : 4 * n + 4]) for n in range(15)]
    result = ground.run([*batches, batch("b15", tests[-1])], ["0", "1", "2", "3"], on_progress)
    assert killed
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert {card.card for card in result.cards if card.attempts} == {"0", "1", "2", "3"}
    assert not ground.jobs()


def test_an_image_that_is_not_there(ground: Ground, write: Write) -> None:
    tests = slow(write, 1)
    ground.options = {"image": "127.0.0.1:5000/no-such-image:1"}
    with pytest.raises(PoolError, match=r"no pod can start with the image 127.0.0.1:5000/no-such-image:1: .*ImagePull"):
        ground.run([batch("b0", *tests)], ["0"])
    assert not ground.jobs()


def test_a_card_that_does_not_come_free(ground: Ground, write: Write) -> None:
    tests = slow(write, 1)
    ground.options = {"queue_seconds": 4, "node_selector": {"no-such": "node"}}
    with pytest.raises(PoolError, match=r"no pod began within 4 s \(pool.queue_seconds\): Unschedulable: .*selector"):
        ground.run([batch("b0", *tests)], ["0"])
    assert not ground.jobs()


def test_a_pod_that_runs_out_of_memory(ground: Ground, write: Write) -> None:
    tests = slow(write, 1)
    ground.options = {"memory": "11Mi"}
    with pytest.raises(PoolError, match="OOMKilled"):
        ground.run([batch("b0", *tests)], ["0"])


def test_a_round_that_takes_too_long(ground: Ground, write: Write) -> None:
    tests = slow(write, 60, 1.0)
    ground.options = {"queue_seconds": 5, "round_seconds": 15}
    result = ground.run([batch(f"b{n}", test) for n, test in enumerate(tests)], ["0", "1"])
    assert 0 < len(outcomes(result)) < len(tests)
    assert set(outcomes(result).values()) == {"passed"}
    assert {lost.partition(": ")[2] for lost in result.lost} == {
        "DeadlineExceeded: Job was active longer than specified deadline"
    }
    assert not ground.jobs()


def test_a_job_that_has_changed_meanwhile_is_not_swept_away(ground: Ground, write: Write) -> None:
    slow(write, 200)
    driver = ground.start_driver(200)
    wait_for(ground.jobs)
    cluster = Cluster(ground.settings)
    [seen] = ground.jobs()
    name = seen["metadata"]["name"]
    assert cluster.label_job(name, {"accel-ci/run": "another"})
    assert not cluster.delete_job_as_seen(seen)
    assert len(ground.jobs()) == 1
    driver.send_signal(signal.SIGINT)
    driver.wait(90)
    assert not cluster.label_job(name, {"accel-ci/run": "a-third"})
    assert not cluster.delete_job_as_seen(seen)


def test_a_worker_that_is_lost_each_time_is_named(ground: Ground, write: Write) -> None:
    write(
        "test_a.py",
        "import os, signal, time\ndef test_1():\n    time.sleep(2)\n"
        "    os.kill(os.getppid(), signal.SIGTERM)\n    time.sleep(60)\n",
    )
    write("test_b.py", "def test_2(): pass\n")
    result = ground.run([batch("b0", "test_b.py::test_2"), batch("b1", "test_a.py::test_1")], ["0"])
    assert outcomes(result) == {"test_b.py::test_2": "passed"}
    assert result.lost == (
        "worker w0-0 on card 0: Error (signal 15)",
        "worker w0-1 on card 0: Error (signal 15)",
    )


def test_cancelling_deletes_the_job(ground: Ground, write: Write) -> None:
    slow(write, 200)
    driver = ground.start_driver(200)
    wait_for(lambda: len(streamed(ground.run_dir)) > 3)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(90) != 0
    assert not ground.jobs()
    assert not [pod for pod in ground.pods() if pod["status"].get("phase") == "Running"]


def test_a_driver_that_was_killed_is_followed_by_one_that_takes_up_its_job(ground: Ground, write: Write) -> None:
    tests = slow(write, 60)
    driver = ground.start_driver(60)
    wait_for(lambda: len(streamed(ground.run_dir)) > 5)
    driver.kill()
    driver.wait()
    [before] = ground.jobs()
    ground.run_dir.rename(ground.run_dir.with_name("elsewhere"))  # what the next one knows is in the bucket
    seen = 0
    during: list[dict[str, Any]] = []

    def on_progress(more: int, _: object) -> None:
        nonlocal seen
        seen += more
        if seen >= 40 and not during:
            during.extend(ground.jobs())

    result = ground.run([batch(f"b{n}", test) for n, test in enumerate(tests)], ["0", "1"], on_progress)
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert Counter(attempt.test for attempt in result.attempts) == Counter(tests) == Counter(streamed(ground.run_dir))
    assert [job["metadata"]["uid"] for job in during] == [before["metadata"]["uid"]]
    assert {attempt.worker for attempt in result.attempts} == {"w0-0", "w0-1"}


def test_a_command_in_a_pod(ground: Ground, write: Write, tmp_path: Path) -> None:
    write("data.txt", "hello")
    folder = tmp_path / "exchange"
    folder.mkdir()
    (folder / "script.py").write_text(
        "import pathlib, sys\nprint('said')\n"
        "pathlib.Path(sys.argv[1], 'out').write_text(pathlib.Path(sys.argv[2], 'data.txt').read_text())\nsys.exit(3)\n"
    )
    command = ["python3", str(folder / "script.py"), str(folder), str(ground.root)]
    done = ground.pool.execute(command, ground.spec, folder, 60)
    assert (done.status, done.output.strip()) == (3, "said")
    assert (folder / "out").read_text() == "hello"
    assert not ground.jobs()


def test_a_stage_collects_and_runs_on_the_cluster(
    ground: Ground, make_project: Callable[..., Project], write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    write(
        "tests/unit/test_a.py",
        """
        import os, pytest, sys
        @pytest.mark.parametrize("python", [sys.executable])
        def test_python(python): assert python == sys.executable
        def test_environment():
            assert "SECRET" not in os.environ
            assert (os.environ["OWN"], os.environ["HOME"], os.getcwd()) == ("value", "/accel-ci", ROOT)
        """.replace("ROOT", repr(str(ground.root))),
    )
    pool = {
        "kind": "kubernetes", "cards": 2, "image": ground.settings.image, "resource": ground.settings.resource,
        "host_network": True, "environment": {"OWN": "value"},
        "bucket": {"bucket": ground.store.bucket, "prefix": ground.store.prefix, "endpoint": ground.store.endpoint},
    }  # fmt: skip
    suites = {"smoke": {"stage": "smoke", "paths": ["tests/smoke"]}, "unit": {"paths": ["tests/unit"]}}
    runner = build_runner(tmp_path / "runner.pyz")
    folder = tmp_path / "runs" / ground.project / "device"
    stage_context = StageContext(
        Build("nightly-20261128", "py3"), date(2026, 11, 28), runner, folder, tmp_path / "cards.lock",
        ArtifactStore(tmp_path / "artifacts"), ResultsStore(tmp_path / "results"), "run-of-a-test",
    )  # fmt: skip
    results = run_device(make_project(pool=pool, suites=suites), ground.root, stage_context)
    assert (results.counts, failed_attempts(stage_context.results, stage_context.build, results.suites)) == (
        {"passed": 2},
        [],
    )
    assert not ground.store.of_round("toy").sizes("")  # nothing is left behind


def test_leftovers_of_runs_that_are_over(ground: Ground, write: Write) -> None:
    slow(write, 200)
    driver = ground.start_driver(200)
    wait_for(ground.jobs)
    driver.kill()
    driver.wait()

    def sweep(ended_at: float | None, **options: Any) -> list[str]:
        return [leftover.why for leftover in ground.pool.remove_leftovers(lambda _: ended_at, **options)]

    assert sweep(None) == sweep(time.time() - 60) == []
    assert sweep(time.time() - 3600, dry_run=True) == ["its run run-of-a-test is over"]
    assert len(ground.jobs()) == 1
    assert sweep(time.time() - 3600) == ["its run run-of-a-test is over"]
    wait_for(lambda: not ground.jobs())
