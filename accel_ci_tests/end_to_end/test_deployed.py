"""The nightly of the example on a real cluster, from the tick of its schedule to the ledger, with nothing on the machine.

Dagster's services, each run and each step have pods of their own; the device tests run on four cards in the runtime image.
Everything that a step needs from another goes through S3, the registry or PostgreSQL. It needs the variables of
`fixtures/deployment.py`, which `ACCEL_CI_CLUSTER=1 .ci/run` sets.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from accel_ci.config.loading import load_project
from accel_ci.model import DeviceTestResults, Ledger
from accel_ci.pipelines import DEVICE_TEST_RESULTS, LEDGER
from accel_ci.results.store import open_results
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.bench import make_bench
from accel_ci_tests.fixtures.deployment import NEEDED, build_image, configure, deployed, git_daemon, wait_for
from accel_ci_tests.fixtures.postgres import empty_postgres
from accel_ci_tests.fixtures.stored_attempts import all_verdicts

STEPS = (
    "wheel", "runtime_image", "smoke_results", "test_selection", "test_plan", "device_test_results", "ledger",
    "flakiness", "coverage", "incidents", "quarantine", "quality_report", "hud",
)  # fmt: skip


def test_a_nightly_from_the_tick_of_its_schedule_to_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        pytest.skip(f"a deployment on a cluster needs {', '.join(missing)}")
    bench, prefix = make_bench(tmp_path), f"deployed-{os.getpid()}"
    image = build_image(bench, os.environ["ACCEL_CI_CLUSTER_REGISTRY"])
    (tmp_path / "overlay").mkdir()
    with git_daemon(tmp_path) as address, contextmanager(empty_postgres)() as postgres_url:
        soon = datetime.now(timezone.utc) + timedelta(minutes=2)
        nightly = {"cron": f"{soon.minute} {soon.hour} * * *", "enabled": True, "variants": ["py311-torch2.13-emu"]}
        configure(bench, address, prefix, **{f"jobs__nightly__{name}": value for name, value in nightly.items()})
        with deployed(bench, tmp_path / "overlay", image, postgres_url) as deployment:
            run = wait_for("the schedule starts a run", lambda: next(iter(deployment.runs()), None), 300)
            ended = ("SUCCESS", "FAILURE", "CANCELED")
            status = wait_for(
                "the run ends",
                lambda: next((one["status"] for one in deployment.runs() if one["status"] in ended), None),
                1500,
                every=5,
            )
            jobs = deployment.objects("jobs", f"dagster/run-id={run['runId']}")
            assert status == "SUCCESS", deployment.failures(run["runId"])
            steps = {job["metadata"]["labels"].get("dagster/op"): job for job in jobs}
            assert set(STEPS) <= set(steps)
            specs = {str(step): job["spec"]["template"]["spec"] for step, job in steps.items()}
            resources = {step: spec["containers"][0]["resources"]["requests"] for step, spec in specs.items()}
            assert resources["wheel"] == {"cpu": "300m", "memory": "2Gi"}
            assert resources["device_test_results"] == {"cpu": "100m", "memory": "1Gi"}
    monkeypatch.setenv("ACCEL_CI_HOME", str(tmp_path / "another_machine"))
    workspace = Workspace(load_project(bench.folder / "accel_ci.yaml"))
    [build] = workspace.manifests.list_builds()
    results = workspace.manifests.find(DEVICE_TEST_RESULTS, build, DeviceTestResults)
    ledger = workspace.manifests.find(LEDGER, build, Ledger)
    assert results is not None
    assert ledger is not None
    assert ledger.expected == sum(ledger.counts.values()) > 0
    assert ledger.counts["not_run"] == ledger.counts["infra"] == 0
    verdicts = all_verdicts(open_results(workspace.project), build)
    assert len({(verdict.suite, verdict.test) for verdict in verdicts}) == ledger.expected
    workspace.manifests.share.bring(workspace.hud)
    assert build.revision in (workspace.hud / "index.html").read_text()
