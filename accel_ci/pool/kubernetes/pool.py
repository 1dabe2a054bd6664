"""The Kubernetes pool: a worker is a pod of a Job, and the round is kept in a bucket.

The cluster's scheduler is the engine: pods wait for cards, and a Job replaces pods that fail. Jobs are named after
(project, run, round), so a driver that starts again finds the Job of the last one and follows its pods.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from accel_ci.config.pool_settings import BucketSettings, KubernetesPoolSettings
from accel_ci.config.settings import Results
from accel_ci.errors import PoolError
from accel_ci.model import RuntimeImage, WorkerSpec
from accel_ci.pool.environment import container_spec
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.job import (
    OWN_FOLDER,
    ROUND_LABEL,
    RUN_LABEL,
    JobRequest,
    folders_of,
    job_manifest,
    job_name,
    label,
)
from accel_ci.pool.kubernetes.leftovers import delete_old_jobs, delete_old_rounds
from accel_ci.pool.kubernetes.packing import pack_file, pack_folder
from accel_ci.pool.kubernetes.pending import PendingPods
from accel_ci.pool.kubernetes.pods import PodState, job_end, pod_state
from accel_ci.pool.kubernetes.worker_group import KubernetesWorkerGroup, can_attach, delete_jobs
from accel_ci.pool.project_pool import EndedAt, Leftover
from accel_ci.pool.runner_package import build_runner
from accel_ci.process.run import Finished
from accel_ci.process.waiting import poll
from accel_ci.rounds.bucket_round import BucketRound
from accel_ci.rounds.bucket_sync import Slot
from accel_ci.rounds.engine import WorkerGroup, cards_in
from accel_ci.rounds.round_bucket import RoundStore
from accel_ci.storage.archive import unpack
from accel_ci.storage.s3 import environment_keys

_LOG = logging.getLogger(__name__)
_SIGNED_LONGER_S = 3600.0


def round_store(pool: KubernetesPoolSettings, results: Results) -> RoundStore:
    """The bucket of the pool's rounds, by default that of the results, with the same credentials."""
    own = pool.bucket or BucketSettings(bucket=results.bucket or "", endpoint=results.endpoint, region=results.region)
    access_key, secret_key = environment_keys()
    return RoundStore(
        own.bucket, own.prefix, own.endpoint, own.region, access_key, secret_key, own.worker_endpoint,
        signed_for_s=pool.queue_seconds + pool.round_seconds + _SIGNED_LONGER_S,
    )  # fmt: skip


class KubernetesPool:
    """Runs workers as pods."""

    outlives_driver = True

    def __init__(self, settings: KubernetesPoolSettings, store: RoundStore, project: str, run: str = "") -> None:
        """Nothing is reached yet. `project` tells Jobs in a shared namespace apart, `run` names who asks for them."""
        self._settings, self._store, self._project, self._run = settings, store, project, run
        self._rounds: dict[Path, BucketRound] = {}

    def worker_spec(self, image: RuntimeImage, sources: Path) -> WorkerSpec:
        """Workers start in the pool's own image, else in the build's; the device plugin gives them their cards."""
        return container_spec(self._settings, image, sources)

    def run_lock(self, run_dir: Path, cards_lock: Path) -> tuple[Path, str]:
        """The cluster shares cards between runs, so a run needs its folder alone."""
        return run_dir.with_name(f".{run_dir.name}.lock"), str(run_dir)

    def open_round(self, folder: Path) -> BucketRound:
        """The round in a folder and a bucket."""
        bucket = self._store.of_round(f"{self._project}/{_run_name(folder.parent)}/{folder.name}")
        self._rounds[folder] = BucketRound(folder, bucket)
        return self._rounds[folder]

    def start(self, folder: Path, cards: Sequence[str], spec: WorkerSpec, attempt: int) -> WorkerGroup:
        """Create the round's Job, or attach to the one that an earlier driver of the same plan left. Raises `PoolError`."""
        cluster, settings = Cluster(self._settings), self._settings_for(spec)
        bucket_sync = self._rounds[folder].sync
        name = job_name(self._project, _run_name(folder.parent), folder.name)
        slots = [Slot(f"w{attempt}-{rank}", card, rank) for rank, card in enumerate(cards)]
        request = JobRequest(
            name=name,
            project=self._project,
            round=name,
            pods=len(slots),
            cards=len(cards_in(cards[0])),
            errand_url="",
            folders=folders_of(spec.root),
            environment=spec.environment,
            run=self._run,
            build=_run_name(folder.parent),
            plan=bucket_sync.plan_digest,
        )
        found = cluster.job(name)
        attached = (
            found is not None
            and can_attach(found, bucket_sync.plan_digest)
            and cluster.label_job(name, {RUN_LABEL: label(self._run)} if self._run else {})
        )
        if attached:
            slots = bucket_sync.invited()
        else:
            delete_jobs(cluster, name)
        runner, root = "runner.pyz", str(Path(spec.root).absolute())
        try:
            invitation = bucket_sync.invite(slots)
            errand = {
                "unpack": [
                    [bucket_sync.put("runner", pack_file(build_runner(folder / runner))), OWN_FOLDER],
                    [bucket_sync.put("sources", pack_folder(Path(spec.root))), root],
                ],
                "unset": settings.unset_environment,
                "root": root,
                "command": [f"{OWN_FOLDER}/{runner}", "work", "--round-url", "-", "--scratch", f"{OWN_FOLDER}/worker"],
                "round": invitation,
                "result": None,
            }
            url = bucket_sync.put("errand", _packed(errand))
            worker_group = KubernetesWorkerGroup(cluster, settings, bucket_sync, replace(request, errand_url=url), slots)
        except BaseException:
            bucket_sync.close()
            raise
        try:
            if not attached:
                worker_group.add_job(name, len(slots))
        except BaseException:
            worker_group.close()
            raise
        return worker_group

    def clear(self, run_dir: Path) -> None:
        """Do nothing: `start` attaches to what an earlier driver left running."""

    def forget(self, run_dir: Path) -> None:
        """Delete what the bucket has of the run. Raises `PoolError`."""
        self._store.of_round(f"{self._project}/{_run_name(run_dir)}").clear()

    def execute(self, command: Sequence[str], spec: WorkerSpec, folder: Path, timeout_s: float) -> Finished:
        """Run a command in a pod without a card. Raises `PoolError` when it cannot, or at the limit, queueing excluded."""
        cluster, settings = Cluster(self._settings), self._settings_for(spec)
        name = f"accel-ci-command-{uuid.uuid4().hex[:16]}"
        bucket = self._store.of_round(f"{self._project}/{name}")
        root = str(Path(spec.root).absolute())
        try:
            signer = bucket.signer()
            bucket.put("sources", pack_folder(Path(root)))
            bucket.put("folder", pack_folder(folder))
            errand = {
                "unpack": [[signer.get("sources"), root], [signer.get("folder"), str(folder)]],
                "unset": settings.unset_environment,
                "root": root,
                "folder": str(folder),
                "command": list(command[1:]),
                "result": [signer.claim("result")[0], signer.claim("report")[0]],
            }
            bucket.put("errand", _packed(errand))
            request = JobRequest(
                name, self._project, name, 1, 0, signer.get("errand"), folders_of(root, [str(folder)]), spec.environment,
                self._run,
            )  # fmt: skip
            cluster.create_job(job_manifest(settings, request))
            self._await_end(cluster, settings, name, timeout_s)
            report, result = bucket.get("report"), bucket.get("result")
            if report is None or result is None:
                ended = [state for state in _pods(cluster, name) if state.end is not None]
                details = "; ".join(f"{state.end}: {state.log_tail.strip()[-2000:]}" for state in ended)
                raise PoolError(f"a command could not be run in a pod of {settings.image}: {details or 'its pods are gone'}")
        finally:
            cluster.delete_job(name)
            bucket.clear()
        unpack(io.BytesIO(result), folder)
        content = json.loads(report)
        return Finished(int(content["status"]), str(content["output"]))

    def remove_leftovers(self, ended_at: EndedAt, *, dry_run: bool = False) -> list[Leftover]:
        """Delete Jobs of runs that are over, and rounds that no URL opens any more. Raises `PoolError`."""
        jobs = delete_old_jobs(self._settings, self._project, ended_at, dry_run=dry_run)
        return jobs + delete_old_rounds(self._store, self._project, dry_run=dry_run)

    def docker_options(self, card: str) -> None:
        """A developer has no pod: tests are reproduced in an environment."""

    def _settings_for(self, spec: WorkerSpec) -> KubernetesPoolSettings:
        """The settings with the image and the interpreter of pods. Raises `PoolError` when there is no image."""
        image = self._settings.image or spec.image
        if image is None:
            raise PoolError(
                "the build made no Docker image; add the section 'image' with a registry that the cluster pulls from, or "
                "set pool.image"
            )
        return self._settings.model_copy(update={"image": image, "python": self._settings.python or spec.python})

    def _await_end(self, cluster: Cluster, settings: KubernetesPoolSettings, name: str, timeout_s: float) -> None:
        """Wait until a pod of a Job has ended; raises `PoolError` when none can begin, and at the limit."""
        pending = PendingPods(settings)
        running_since: float | None = None
        for _ in poll(_LOG, f"the command of {name} to end", 0.5):
            states = _pods(cluster, name)
            if any(state.end for state in states) or job_end(cluster.job(name)):
                return
            overdue = pending.overdue(states)
            if overdue:
                raise pending.error(overdue[0])
            if any(state.waits is None for state in states):
                running_since = running_since or time.monotonic()
                if time.monotonic() - running_since > timeout_s:
                    raise PoolError(f"a command did not end within {timeout_s:g} s in a pod")


def _run_name(run_dir: Path) -> str:
    """A run's name wherever its data folder is: `<revision>/<variant>/<stage>`."""
    return "/".join(run_dir.absolute().parts[-3:])


def _pods(cluster: Cluster, job: str) -> list[PodState]:
    return [pod_state(pod) for pod in cluster.pods(f"{ROUND_LABEL}={job}")]


def _packed(content: dict[str, Any]) -> bytes:
    return gzip.compress(json.dumps(content).encode())
