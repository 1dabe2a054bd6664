"""Measure on real servers what a small round asks of S3 and of a cluster's API server, and what it keeps in etcd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from accel_ci.model import Batch, Limits, WorkerSpec
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.pool import KubernetesPool
from accel_ci.rounds.driver import run_rounds
from accel_ci.rounds.engine import Pool
from accel_ci.rounds.round_bucket import RoundStore
from accel_ci.source.checkout import MARK
from accel_ci.storage.s3 import environment_keys
from accel_ci_tests.fixtures.bucket_pool import BucketPool
from accel_ci_tests.fixtures.checkout import git
from accel_ci_tests.fixtures.cluster_pool import cluster_settings
from benchmarks.counted_requests import CLUSTER, Requests, counting_proxy, requests_of_this_process

_SUITE = "suite"


@dataclass(frozen=True)
class Stored:
    """Objects of one kind in etcd: how many, and their bytes as JSON, which are more than etcd's own."""

    objects: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class MeasuredRound:
    """The requests of a round's driver to S3 and to the API server, those of its workers, and its objects in etcd."""

    workers: int
    batches: int
    seconds: float
    driver: Requests
    from_workers: Requests
    cluster: Requests = field(default_factory=Requests)
    etcd: dict[str, Stored] = field(default_factory=dict)


def rounds_of(endpoint: str, worker_endpoint: str | None = None) -> RoundStore:
    """Return the store of a benchmark's rounds, below a new prefix."""
    prefix = f"rounds-of-benchmarks/{uuid.uuid4().hex[:8]}"
    return RoundStore(
        os.environ["ACCEL_CI_S3_BUCKET"], prefix, endpoint, None, *environment_keys(), worker_endpoint=worker_endpoint
    )


def measure_round(folder: Path, workers: int, each: int, test_s: float, *, pods: bool) -> MeasuredRound:
    """Run a round of real workers, pods or processes, with `each` batches of one test for each worker."""
    root = folder / "sources"
    root.mkdir(parents=True)
    (root / MARK).touch()
    count = workers * each
    test = f"import pytest, time\n@pytest.mark.parametrize('n', range({count}))\ndef test_n(n):\n    time.sleep({test_s})\n"
    (root / "test_a.py").write_text(test)
    git(root, "init", "--quiet")
    batches = [Batch(f"b{n}", _SUITE, "test_a.py", (f"test_a.py::test_n[{n}]",), test_s) for n in range(count)]
    endpoint, cards = os.environ["ACCEL_CI_S3_ENDPOINT"], [str(number) for number in range(workers)]
    with counting_proxy(endpoint) as (own, driver), counting_proxy(endpoint) as (theirs, from_workers):
        store = rounds_of(own, theirs)
        project = f"capacity-{uuid.uuid4().hex[:8]}"
        pool: Pool = KubernetesPool(cluster_settings(), store, project) if pods else BucketPool(store, project)
        spec = WorkerSpec("python3" if pods else sys.executable, str(root), {} if pods else dict(os.environ), "CARD")
        watch = _EtcdWatch() if pods else None
        try:
            with requests_of_this_process() as counted:
                began = time.monotonic()
                done = run_rounds(pool, batches, cards, spec, Limits(), folder / "run", lambda *_: None, 1)
                seconds = time.monotonic() - began
            found = driver.copy()
            if watch is not None:
                watch.end()
        finally:
            store.of_round(project).clear()
    if len(done.attempts) != count:
        raise AssertionError(f"{len(done.attempts)} attempts of {count}")
    asked = Requests({key: times for key, times in counted.items() if key[1].startswith(CLUSTER)})
    return MeasuredRound(workers, count, seconds, found, from_workers, asked, watch.most if watch else {})


class _EtcdWatch(threading.Thread):
    """Looks at the objects of the namespace every few seconds; by kubectl, so that this process does not ask for them."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most: dict[str, Stored] = {}
        self._ending = threading.Event()
        self.start()

    def end(self) -> None:
        self._ending.set()
        self.join()

    def run(self) -> None:
        ask = [os.environ["ACCEL_CI_CLUSTER_KUBECTL"], "-n", Cluster(cluster_settings()).namespace, "get"]
        others: set[str] | None = None
        while others is None or not self._ending.wait(3):
            done = subprocess.run([*ask, "jobs,pods,events", "-o", "json"], capture_output=True, timeout=60, check=True)
            found = {item["metadata"]["uid"]: item for item in json.loads(done.stdout)["items"]}
            others = set(found) if others is None else others
            items: defaultdict[str, list[int]] = defaultdict(list)
            for item in (item for uid, item in found.items() if uid not in others):
                items[item["kind"]].append(len(json.dumps(item)))
            for kind, sizes in items.items():
                if len(sizes) >= self.most.get(kind, Stored()).objects:
                    self.most[kind] = Stored(len(sizes), sum(sizes))
