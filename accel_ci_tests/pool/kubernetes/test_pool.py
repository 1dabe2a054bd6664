"""The Kubernetes pool on a real cluster and a real S3 server.

`KUBECONFIG` names the cluster, `ACCEL_CI_CLUSTER_IMAGE` an image with Python and pytest in reach of it, and
`ACCEL_CI_CLUSTER_RESOURCE` an extended resource of which 4 are free. Pods use their node's network, for a test's S3 server
listens on loopback.
"""

from __future__ import annotations

import logging
import os
import signal
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from threading import Timer
from typing import Any

import kubernetes
import pytest

from accel_ci.config.settings import Project
from accel_ci.errors import PoolError
from accel_ci.model import Build, Limits
from accel_ci.pool.kubernetes import cluster as cluster_module
from accel_ci.pool.kubernetes import pool as pool_module
from accel_ci.pool.kubernetes.job import JobRequest, job_manifest, job_name
from accel_ci.pool.runner_package import build_runner
from accel_ci.results.questions import failed_attempts
from accel_ci.results.store import ResultsStore
from accel_ci.rounds.driver import run_rounds
from accel_ci.steps.device_tests import StageContext
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci_tests.fixtures.cluster_pool import Gate
from accel_ci_tests.fixtures.ground import RUN_NAME, Ground, Kind, outcomes
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.stages import run_device
from accel_ci_tests.fixtures.suite import Write, batch, numbered_batches


@pytest.fixture
def ground(open_ground: Callable[[Kind], Ground]) -> Ground:
    return open_ground("kubernetes")


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
        if not killed and len(ground.streamed()) > 15:
            running = ground.containers()
            assert len(running) == 4
            assert {pod["metadata"]["labels"]["accel-ci/run"] for pod in running} == {RUN_NAME}
            killed.append(running[0]["metadata"]["name"])
            ground.cluster.delete_pod(killed[0])

    batches = [batch(f"b{n}", *tests[4 * n : 4 * n + 4]) for n in range(15)]
    result = ground.run(
        [*batches, batch("b15", tests[-1])],
        ["0", "1", "2", "3"],
        environment={"GIVEN": "yes"},
        max_rounds=1,
        on_progress=on_progress,
    )
    assert killed
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert {card.card for card in result.cards if card.attempts} == {"0", "1", "2", "3"}
    assert not ground.jobs()


def set_parallelism(ground: Ground, pods: int) -> None:
    """Have the round's Job end its pods, or make them again, as Kueue does where another queue needs the cards.

    Kueue suspends the Job. A cluster before 1.21 does not know that; without parallelism, its pods go in the same way.
    """
    api = kubernetes.client.BatchV1Api(kubernetes.config.new_client_from_config(os.environ["KUBECONFIG"]))
    for job in ground.jobs():
        api.patch_namespaced_job(job["metadata"]["name"], ground.cluster.namespace, {"spec": {"parallelism": pods}})


def test_pods_that_are_taken_away_come_back_or_are_given_up(ground: Ground, write: Write) -> None:
    tests, batches = slow(write, 40), numbered_batches(40)
    taken: list[Timer] = []

    def take_away(back: bool) -> Callable[..., None]:
        def on_progress(*_: object) -> None:
            if not taken and len(ground.streamed()) > 5:
                set_parallelism(ground, 0)
                taken.append(Timer(12, set_parallelism, (ground, 2)) if back else Timer(0, int))
                taken[0].start()

        return on_progress

    result = ground.run(batches, max_rounds=1, on_progress=take_away(back=True))
    assert taken
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    taken.clear()
    ground.options = {"queue_seconds": 10}
    ground.run_dir = ground.run_dir.with_name("given-up")
    result = ground.run(batches, max_rounds=1, on_progress=take_away(back=False))
    assert taken
    assert 0 < len(outcomes(result)) < len(tests)
    assert any("no pod for 10 s: " in lost for lost in result.lost), result.lost


def test_the_pods_of_workers_are_known_by_name(ground: Ground, write: Write) -> None:
    tests, pool, seen = slow(write, 8, 0.5), ground.project_pool, set[str]()

    def on_progress(*_: object) -> None:
        seen.update(pod["metadata"]["name"] for pod in ground.containers())

    batches = [batch(f"b{number}", test) for number, test in enumerate(tests)]
    run_rounds(pool, batches, ["0", "1"], ground.spec(), Limits(), ground.run_dir, on_progress, 1)
    pods = pool.pods()
    assert {pod.pod for pod in pods} == seen
    assert {(pod.round, pod.card, pod.namespace) for pod in pods} == {
        ("round-1", card, ground.cluster.namespace) for card in ("0", "1")
    }


def test_an_image_that_is_not_there(ground: Ground, write: Write) -> None:
    tests = slow(write, 1)
    ground.options = {"image": "127.0.0.1:5000/no-such-image:1"}
    with pytest.raises(PoolError, match=r"no pod can start with the image 127.0.0.1:5000/no-such-image:1: .*ImagePull"):
        ground.run([batch("b0", *tests)], ["0"], max_rounds=1)
    assert not ground.jobs()


def test_a_card_that_does_not_come_free(ground: Ground, write: Write) -> None:
    tests = slow(write, 1)
    ground.options = {"queue_seconds": 4, "node_selector": {"no-such": "node"}}
    with pytest.raises(PoolError, match=r"no pod began within 4 s \(pool.queue_seconds\): Unschedulable: .*selector"):
        ground.run([batch("b0", *tests)], ["0"], max_rounds=1)
    assert not ground.jobs()


def test_a_namespace_in_which_no_pod_is_allowed(
    ground: Ground, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota of processors refuses each pod that does not ask for any; without pods, nothing else would tell."""
    if not os.environ.get("ACCEL_CI_CLUSTER_ADMIN"):
        pytest.skip("ACCEL_CI_CLUSTER_ADMIN is not set: the test needs a namespace with a quota")
    monkeypatch.setenv("KUBECONFIG", os.environ["ACCEL_CI_CLUSTER_ADMIN"])
    core = kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(os.environ["KUBECONFIG"]))
    name = f"quota-{uuid.uuid4().hex[:8]}"
    core.create_namespace({"metadata": {"name": name}})
    try:
        core.create_namespaced_resource_quota(name, {"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "64"}}})
        ground.options = {"namespace": name, "queue_seconds": 300}
        refused = r"the cluster makes no pods for the Job \S+: .*failed quota: q: must specify requests.cpu; set pool.cpu"
        with pytest.raises(PoolError, match=refused):
            ground.run([batch("b0", *slow(write, 1))], ["0"], max_rounds=1)
        with pytest.raises(PoolError, match=refused):
            ground.project_pool.execute(["python3", "-V"], ground.spec(), tmp_path, 60)
        assert not ground.jobs()
    finally:
        core.delete_namespace(name)
        ground.options = {}  # of what clears up after the test, as another account


def test_a_pod_that_runs_out_of_memory(ground: Ground, write: Write) -> None:
    tests = slow(write, 1)
    ground.options = {"memory": "11Mi"}
    with pytest.raises(PoolError, match="OOMKilled"):
        ground.run([batch("b0", *tests)], ["0"], max_rounds=1)


def test_a_round_that_takes_too_long(ground: Ground, write: Write) -> None:
    tests = slow(write, 60, 1.0)
    ground.options = {"queue_seconds": 5, "round_seconds": 15}
    result = ground.run(numbered_batches(60), max_rounds=1)
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
    cluster = ground.cluster
    [seen] = ground.jobs()
    name = seen["metadata"]["name"]
    assert cluster.label_job(name, {"accel-ci/run": "another"})
    assert not cluster.delete_job(seen["metadata"]["name"], seen)
    assert len(ground.jobs()) == 1
    driver.send_signal(signal.SIGINT)
    driver.wait(90)
    assert not cluster.label_job(name, {"accel-ci/run": "a-third"})
    assert not cluster.delete_job(seen["metadata"]["name"], seen)


def test_a_worker_that_is_lost_each_time_is_named(ground: Ground, write: Write) -> None:
    write(
        "test_a.py",
        "import os, signal, time\ndef test_1():\n    time.sleep(2)\n"
        "    os.kill(os.getppid(), signal.SIGTERM)\n    time.sleep(60)\n",
    )
    write("test_b.py", "def test_2(): pass\n")
    result = ground.run([batch("b0", "test_b.py::test_2"), batch("b1", "test_a.py::test_1")], ["0"], max_rounds=1)
    assert outcomes(result) == {"test_b.py::test_2": "passed", "test_a.py::test_1": "crashed"}
    assert result.lost == (
        "worker w0-0 on card 0: Error (signal 15)",
        "worker w0-1 on card 0: Error (signal 15)",
    )


def test_cancelling_deletes_the_job(ground: Ground, write: Write) -> None:
    slow(write, 200)
    driver = ground.start_driver(200)
    wait_for(lambda: len(ground.streamed()) > 3)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(90) != 0
    assert not ground.jobs()
    assert not ground.containers()


def test_a_driver_that_was_killed_is_followed_by_one_that_takes_up_its_job(ground: Ground, write: Write) -> None:
    tests = slow(write, 60)
    driver = ground.start_driver(60)
    wait_for(lambda: len(ground.streamed()) > 5)
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

    result = ground.run(numbered_batches(60), max_rounds=1, on_progress=on_progress)
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert Counter(attempt.test for attempt in result.attempts) == Counter(tests) == Counter(ground.streamed())
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
    done = ground.pool.execute(command, ground.spec(), folder, 60)
    assert (done.status, done.output.strip()) == (3, "said")
    assert (folder / "out").read_text() == "hello"
    assert not ground.jobs()


def test_a_command_in_a_pod_cannot_read_its_urls_nor_leave_whatever_it_likes(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "exchange"
    folder.mkdir()
    reads = "print(open('/proc/1/environ').read())"
    done = ground.pool.execute(["python3", "-c", reads], ground.spec(), folder, 60)
    assert (done.status, "PermissionError" in done.output) == (1, True), done.output
    monkeypatch.setattr(pool_module, "_LEFT_AT_MOST", 1000)
    leaves = f"import os; open({str(folder / 'x')!r}, 'wb').write(os.urandom(2000))"
    with pytest.raises(PoolError, match="may leave 1,000"):
        ground.pool.execute(["python3", "-c", leaves], ground.spec(), folder, 60)
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
    settings = ground.cluster_settings
    pool = {
        "kind": "kubernetes", "cards": 2, "image": settings.image, "resource": settings.resource,
        "host_network": True, "environment": {"OWN": "value"},
        "bucket": {"bucket": ground.bucket.bucket, "prefix": ground.bucket.prefix, "endpoint": ground.bucket.endpoint},
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
    assert not ground.bucket.of_round("toy").listed("")  # nothing is left behind


def test_leftovers_of_runs_that_are_over(ground: Ground, write: Write) -> None:
    slow(write, 200)
    driver = ground.start_driver(200)
    wait_for(ground.jobs)
    driver.kill()
    driver.wait()

    def sweep(is_over: bool | None, *build: str, **options: Any) -> list[str]:
        return [leftover.why for leftover in ground.project_pool.remove_leftovers(lambda _: is_over, *build, **options)]

    own = "/".join(ground.run_dir.parts[-3:-1])
    assert sweep(None) == sweep(False) == sweep(True, own) == [], "it is new, lives, or is about to be taken up"
    assert sweep(True, dry_run=True) == [f"its run {RUN_NAME} is over"]
    assert len(ground.jobs()) == 1
    assert sweep(True, "other/build") == [f"its run {RUN_NAME} is over"]
    wait_for(lambda: not ground.jobs())


def test_a_driver_ends_the_job_of_a_round_that_needs_no_workers(ground: Ground, write: Write) -> None:
    """An earlier driver was killed between the last attempt and the end of its pods."""
    write("test_a.py", "def test_a(): pass")
    batches = [batch("b0", "test_a.py::test_a")]
    ground.run(batches, max_rounds=1)
    name = job_name(ground.project, "/".join(ground.run_dir.parts[-3:]), "round-1")
    manifest = job_manifest(
        ground.cluster_settings.model_copy(update={"python": "python3"}),
        JobRequest(name, ground.project, name, 1, 0, "http://127.0.0.1:9/", "/tmp", (), {}, RUN_NAME),
    )
    assert ground.cluster.create_job(manifest)
    result = ground.run(batches, max_rounds=1)
    assert outcomes(result) == {"test_a.py::test_a": "passed"}
    wait_for(lambda: not ground.jobs())


def test_an_api_server_that_is_away_for_a_while_costs_nothing(
    api_server_gate: Gate, ground: Ground, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    tests = slow(write, 40)
    timers: list[Timer] = []

    def on_progress(*_: object) -> None:
        if not timers and len(ground.streamed()) > 5:
            api_server_gate.shut()
            timers.append(Timer(4, api_server_gate.reopen))
            timers[0].start()

    with caplog.at_level(logging.WARNING, "accel_ci"):
        result = ground.run(numbered_batches(40), max_rounds=1, on_progress=on_progress)
    assert timers
    assert any("did not list pods" in record.getMessage() for record in caplog.records)
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert Counter(attempt.test for attempt in result.attempts) == Counter(tests)
    assert not ground.jobs()


def test_an_api_server_that_stays_away_ends_the_run_in_time_and_its_job_is_taken_up(
    api_server_gate: Gate, ground: Ground, write: Write, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(cluster_module, "PATIENCE_S", 4.0)
    tests = slow(write, 160)

    def on_progress(*_: object) -> None:
        if len(ground.streamed()) > 5:
            api_server_gate.shut()

    with caplog.at_level(logging.WARNING, "accel_ci"), pytest.raises(PoolError, match="run the same again when it answers"):
        ground.run(numbered_batches(160), max_rounds=1, on_progress=on_progress)
    lines = [record.getMessage() for record in caplog.records if "giving up in" in record.getMessage()]
    assert any("did not list pods" in line for line in lines)
    api_server_gate.reopen()
    [before] = ground.jobs()
    during: list[dict[str, Any]] = []
    result = ground.run(
        numbered_batches(160), max_rounds=1, on_progress=lambda *_: during.extend([] if during else ground.jobs())
    )
    assert {job["metadata"]["uid"] for job in during} == {before["metadata"]["uid"]}
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert Counter(attempt.test for attempt in result.attempts) == Counter(tests) == Counter(ground.streamed())
    assert not ground.jobs()
