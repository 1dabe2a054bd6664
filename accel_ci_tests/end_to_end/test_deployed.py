"""The nightly of the example on a real cluster, from the tick of its schedule to the ledger, with nothing on the machine.

Dagster's services, each run and each step have pods of their own; the device tests run on four cards in the runtime image.
Everything that a step needs from another goes through S3, the registry or PostgreSQL. It needs the variables of
`fixtures/deployment.py`, which `ACCEL_CI_CLUSTER=1 .ci/run` sets.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.loading import load_project
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures import complete_night
from accel_ci_tests.fixtures.bench import Bench, make_bench
from accel_ci_tests.fixtures.deployment import NEEDED, Deployment, build_image, configure, deployed, git_daemon, wait_for
from accel_ci_tests.fixtures.durable_servers import BUCKET, KEYS, DurableServer, durable_postgres, durable_s3
from accel_ci_tests.fixtures.postgres import empty_postgres

STEPS = (
    "wheel", "runtime_image", "smoke_results", "test_selection", "test_plan", "device_test_results", "ledger",
    "flakiness", "coverage", "incidents", "quarantine", "quality_report", "hud",
)  # fmt: skip
ENDED = ("SUCCESS", "FAILURE", "CANCELED")


@contextmanager
def nightly_on_a_cluster(
    folder: Path, postgres_url: str | None = None, *, buildah: bool = False
) -> Iterator[tuple[Bench, Deployment]]:
    """Deploy the example with a nightly that is due in four minutes: the services need some time to start."""
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        pytest.skip(f"a deployment on a cluster needs {', '.join(missing)}")
    registry = os.environ["ACCEL_CI_CLUSTER_REGISTRY"]
    bench, image = make_bench(folder), build_image(registry)
    with_buildah = build_image(registry, "with-buildah") if buildah else None
    (folder / "overlay").mkdir()
    with ExitStack() as until_the_end:
        address = until_the_end.enter_context(git_daemon(folder))
        postgres_url = postgres_url or until_the_end.enter_context(contextmanager(empty_postgres)())
        soon = datetime.now(timezone.utc) + timedelta(minutes=4)
        nightly = {"cron": f"{soon.minute} {soon.hour} * * *", "enabled": True, "variants": ["py311-torch2.13-emu"]}
        changes = {f"jobs__nightly__{name}": value for name, value in nightly.items()}
        configure(bench, address, f"deployed-{os.getpid()}-{folder.name}", with_buildah, **changes)
        with deployed(bench, folder / "overlay", image, postgres_url) as deployment:
            yield bench, deployment


def first_run(deployment: Deployment) -> str:
    """Wait for the run of the schedule."""
    run: dict[str, Any] = wait_for("the schedule starts a run", lambda: next(iter(deployment.runs()), None), 300)
    return str(run["runId"])


def status_of(deployment: Deployment, run: str) -> str:
    return next(str(one["status"]) for one in deployment.runs() if one["runId"] == run)


def wait_for_success(deployment: Deployment, run: str) -> None:
    def ended() -> str | None:
        status = status_of(deployment, run)
        return status if status in ENDED else None

    assert wait_for("the run ends", ended, 1500, every=5) == "SUCCESS", deployment.failures(run)


def assert_complete(bench: Bench, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the ledger, the attempts and the HUD as a machine finds them whose data folder is empty."""
    monkeypatch.setenv("ACCEL_CI_HOME", str(home))
    complete_night.assert_complete(Workspace(load_project(bench.folder / "accel_ci.yaml")))


def assert_lineage(deployment: Deployment, run: str) -> None:
    """Check that the UI shows what a run made, and from what."""
    fields = "assetKey { path } dependencyKeys { path } assetMaterializations(limit: 1) { runId partition }"
    nodes = {node["assetKey"]["path"][-1]: node for node in deployment.ask(f"{{ assetNodes {{ {fields} }} }}")["assetNodes"]}
    made = {name: [one["runId"] for one in nodes[name]["assetMaterializations"]] for name in STEPS}
    assert made == {name: [run] for name in STEPS}
    assert len({nodes[name]["assetMaterializations"][0]["partition"] for name in STEPS[:7]}) == 1
    sources = {name: {key["path"][-1] for key in node["dependencyKeys"]} for name, node in nodes.items()}
    way = ("revision", "wheel", "runtime_image", "test_selection", "test_plan", "device_test_results", "ledger")
    assert all(earlier in sources[later] for earlier, later in pairwise(way)), sources


def interrupt(server: DurableServer, seconds: float) -> None:
    """Kill a server outright, and start it again after a while."""
    server.kill()
    time.sleep(seconds)
    server.start()


def workers_of(deployment: Deployment, run: str) -> list[str]:
    return [name for name in deployment.running_pods(f"accel-ci/run={run}") if "-round-" in name]


def test_a_nightly_from_the_tick_of_its_schedule_to_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nightly_on_a_cluster(tmp_path, buildah=True) as (bench, deployment):
        run = first_run(deployment)
        wait_for_success(deployment, run)
        jobs = deployment.objects("jobs", f"dagster/run-id={run}")
        steps = {str(job["metadata"]["labels"].get("dagster/op")): job["spec"]["template"]["spec"] for job in jobs}
        assert set(STEPS) <= set(steps)
        resources = {step: spec["containers"][0]["resources"]["requests"] for step, spec in steps.items()}
        assert resources["wheel"] == {"cpu": "300m", "memory": "2Gi"}
        assert resources["device_test_results"] == {"cpu": "100m", "memory": "1Gi"}
        assert_lineage(deployment, run)
        assert_complete(bench, tmp_path / "another_machine", monkeypatch)


def test_a_nightly_during_which_each_part_is_killed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nightly_on_a_cluster(tmp_path) as (bench, deployment):
        run = first_run(deployment)
        deployment.wait_for_step(run, "wheel")
        deployment.kill("app.kubernetes.io/name=accel-ci-webserver")
        deployment.wait_for_step(run, "runtime_image")
        deployment.kill("app.kubernetes.io/name=accel-ci-code")
        deployment.wait_for_step(run, "smoke_results")
        deployment.kill("app.kubernetes.io/name=accel-ci-daemon")
        deployment.wait_for_step(run, "test_selection")
        deployment.kill(f"dagster/run-id={run},dagster/op=test_selection")
        deployment.wait_for_step(run, "device_test_results")
        worker = wait_for("a worker begins", lambda: workers_of(deployment, run), 300)[0]
        deployment.kubectl("delete", "pod", worker, "--grace-period=0", "--force")
        deployment.kill(f"dagster/run-id={run},!dagster/op")
        wait_for_success(deployment, run)
        assert_complete(bench, tmp_path / "another_machine", monkeypatch)


def test_a_nightly_during_which_the_stores_are_killed_and_a_node_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any(not os.environ.get(name) for name in NEEDED):
        pytest.skip(f"a deployment on a cluster needs {', '.join(NEEDED)}")
    with durable_postgres() as postgres, durable_s3() as s3:
        own = {"ENDPOINT": s3.url, "BUCKET": BUCKET, "ACCESS_KEY": KEYS[0], "SECRET_KEY": KEYS[1]}
        for name, value in own.items():
            monkeypatch.setenv(f"ACCEL_CI_S3_{name}", value)
        with nightly_on_a_cluster(tmp_path, postgres.url) as (bench, deployment):
            run = first_run(deployment)
            deployment.wait_for_step(run, "wheel")
            interrupt(postgres, 5)
            deployment.wait_for_work(run, "runtime_image")
            deployment.drain(f"dagster/run-id={run},dagster/op=runtime_image")
            deployment.wait_for_step(run, "test_selection")
            interrupt(s3, 5)
            deployment.wait_for_step(run, "device_test_results")
            wait_for("workers begin", lambda: workers_of(deployment, run), 300)
            interrupt(s3, 20)
            interrupt(postgres, 45)
            wait_for_success(deployment, run)
            assert_complete(bench, tmp_path / "another_machine", monkeypatch)


def test_a_cancelled_run_leaves_no_pods(tmp_path: Path) -> None:
    with nightly_on_a_cluster(tmp_path) as (_, deployment):
        run = first_run(deployment)
        deployment.wait_for_step(run, "wheel")
        cancel = """mutation ($run: String!) { terminateRun(runId: $run, terminatePolicy: SAFE_TERMINATE) { __typename } }"""
        assert deployment.ask(cancel, {"run": run})["terminateRun"]["__typename"] == "TerminateRunSuccess"
        wait_for("the run is cancelled", lambda: status_of(deployment, run) == "CANCELED", 120)
        wait_for("no pod of it runs", lambda: not deployment.running_pods(f"dagster/run-id={run}"), 120)
        assert "wheel" in deployment.failures(run)
