"""A nightly with an image in a registry and tests in pods of a real cluster, one of which is deleted during the run.

It needs the variables of the Kubernetes pool's tests, `ACCEL_CI_CLUSTER_REGISTRY`, which the cluster pulls from, and
`ACCEL_CI_CLUSTER_BASE`, an image with Python, by digest.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.job import PROJECT_LABEL, ROUND_LABEL
from accel_ci.results.store import open_results
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.bench import make_bench
from accel_ci_tests.fixtures.stored_attempts import all_verdicts

CARDS = 4
_NEEDED = (
    "KUBECONFIG", "ACCEL_CI_CLUSTER_RESOURCE", "ACCEL_CI_CLUSTER_REGISTRY", "ACCEL_CI_CLUSTER_BASE",
    "ACCEL_CI_S3_ENDPOINT", "ACCEL_CI_S3_BUCKET",
)  # fmt: skip


def pool() -> dict[str, Any]:
    """Return the section of the pool."""
    return {
        "kind": "kubernetes",
        "cards": CARDS,
        "resource": os.environ["ACCEL_CI_CLUSTER_RESOURCE"],
        "host_network": True,
        "queue_seconds": 300,
        "health_probe": ["python", "-m", "torch_emu.health"],
        "environment": {"OMP_NUM_THREADS": "1", "EMU_CARDS": "1"},
        "bucket": {
            "bucket": os.environ["ACCEL_CI_S3_BUCKET"],
            "endpoint": os.environ["ACCEL_CI_S3_ENDPOINT"],
            "prefix": f"nightly-{os.getpid()}",
        },
    }


def test_a_nightly_on_four_pods_of_which_one_is_deleted(tmp_path: Path) -> None:
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        pytest.skip(f"a nightly on a cluster needs {', '.join(missing)}")
    bench = make_bench(tmp_path)
    registry = f"{os.environ['ACCEL_CI_CLUSTER_REGISTRY']}/torch-emu"
    bench.configure(
        pool=pool(),
        image={"base": os.environ["ACCEL_CI_CLUSTER_BASE"], "registry": registry},
        limits={"test_timeout_seconds": 60},
    )
    cluster = Cluster(KubernetesPoolSettings.model_validate(pool()))
    run = bench.start("run", "nightly")
    device = bench.project.home / "runs"
    deleted = None
    deadline = time.monotonic() + 900
    while run.poll() is None and time.monotonic() < deadline:
        records = device.glob("*/*/device/round-1*/workers/*/events.jsonl")
        attempts = sum(record.read_bytes().count(b'"event":"attempt"') for record in records)
        if deleted is None and attempts >= 20:
            pods = [pod for pod in cluster.pods(ROUND_LABEL) if pod["status"].get("phase") == "Running"]
            if len(pods) == CARDS:
                deleted = pods[0]["metadata"]["name"]
                cluster.delete_pod(deleted)
        time.sleep(0.2)
    assert run.poll() == 0
    assert deleted is not None
    [build] = ManifestStore(bench.project.home).list_builds()
    ledger = bench.ledger(build)
    assert ledger.expected == sum(ledger.counts.values())
    assert ledger.counts["not_run"] == ledger.counts["infra"] == 0
    verdicts = all_verdicts(open_results(bench.project), build)
    assert len({(verdict.suite, verdict.test) for verdict in verdicts}) == ledger.expected
    assert len({attempt.card for attempt in bench.attempts(build)}) >= CARDS - 1  # the deleted pod may have run none yet
    assert not cluster.jobs(f"{PROJECT_LABEL}={bench.project.settings.backend.name}")
