"""The Kubernetes pool: a worker is a pod of a Job, and the round is kept in a bucket.

The cluster's scheduler is the engine: pods wait for cards, and a Job replaces pods that fail. Jobs are named after
(project, run, round), so a driver that starts again finds the Job of the last one and follows its pods.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import tarfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from accel_ci.config.pool_settings import BucketSettings, KubernetesPoolSettings
from accel_ci.config.settings import Results
from accel_ci.errors import PoolError
from accel_ci.model import RuntimeImage, WorkerPod, WorkerSpec
from accel_ci.pool.environment import container_spec
from accel_ci.pool.kubernetes import job as job_document
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.job import RUN_LABEL, JobRequest, job_manifest, job_name, label
from accel_ci.pool.kubernetes.pods import (
    MissingPods,
    PendingPods,
    PodState,
    cards_of_nodes,
    job_end,
    pod_state,
    too_few_cards,
)
from accel_ci.pool.kubernetes.worker_group import KubernetesWorkerGroup, can_attach, delete_jobs
from accel_ci.pool.project_pool import IsOver, Leftover, ProjectPool, own_lock
from accel_ci.pool.runner_package import build_runner
from accel_ci.process.run import Finished
from accel_ci.process.waiting import poll
from accel_ci.rounds.bucket_records import Slot
from accel_ci.rounds.bucket_round import BucketRound
from accel_ci.rounds.engine import WorkerGroup, cards_in
from accel_ci.rounds.folder_round import FolderRound
from accel_ci.rounds.round_bucket import RoundStore
from accel_ci.rounds.signing import LONGEST_S
from accel_ci.source.checkout import checkout_root
from accel_ci.storage.archive import TarError, unpack
from accel_ci.storage.s3 import environment_keys

_LOG = logging.getLogger(__name__)
_CHECK_PATIENCE_S = 10.0  # the time that the API server may be away when a run begins
_SIGNED_LONGER_S = 3600.0
_LEFT_AT_MOST = 1 << 28  # bytes, packed: they are read into memory, and code of a stranger may decide what they are


def round_store(pool: KubernetesPoolSettings, results: Results) -> RoundStore:
    """The bucket of the pool's rounds, by default that of the results, with the same credentials."""
    own = pool.bucket or BucketSettings(bucket=results.bucket or "", endpoint=results.endpoint, region=results.region)
    access_key, secret_key = environment_keys()
    return RoundStore(
        own.bucket, own.prefix, own.endpoint, own.region, access_key, secret_key, own.worker_endpoint,
        signed_for_s=pool.queue_seconds + pool.round_seconds + _SIGNED_LONGER_S,
    )  # fmt: skip


class KubernetesPool(ProjectPool):
    """Runs workers as pods."""

    outlives_driver = True

    def __init__(
        self,
        settings: KubernetesPoolSettings,
        store: RoundStore,
        project: str,
        run: str = "",
        widest: int = 1,
        *,
        with_cards: bool = True,
    ) -> None:
        """Nothing is reached yet. `project` tells Jobs in a shared namespace apart, `run` names who asks for them.

        `widest` is the largest number of cards that a pod asks for. Unless it is `with_cards`, pods ask for none.
        """
        self._with_cards = with_cards
        self._widest = widest
        self._settings, self._store, self._project, self._run = settings, store, project, run
        self._rounds: dict[Path, BucketRound] = {}
        self._started: dict[Path, tuple[BucketRound, str]] = {}  # with the namespace of its pods

    def check(self) -> str:
        """Check the cluster, the rights in its namespace, and its nodes' cards."""
        settings = self._settings.model_copy(update={"image": self._settings.image or "accel-ci", "python": "python3"})
        cluster = Cluster(settings, _CHECK_PATIENCE_S)
        name = job_name(self._project, uuid.uuid4().hex, "check")
        request = JobRequest(name, self._project, name, 1, self._widest, "", "/sources", (), {}, self._run)
        cluster.try_job(job_manifest(settings, request))
        nodes = cluster.nodes()
        if nodes is None:
            return f"namespace {cluster.namespace}; its account may not list nodes, so nobody knows their cards"
        cards = cards_of_nodes(nodes, settings)
        if max(cards, default=0) < self._widest and not settings.nodes_on_demand:
            raise too_few_cards(settings, self._widest, cards)
        return f"namespace {cluster.namespace}; {sum(cards)} {settings.resource} on {sum(map(bool, cards))} node(s)"

    def worker_spec(self, image: RuntimeImage, sources: Path) -> WorkerSpec:
        """Workers start in the pool's own image, else in the build's; the device plugin gives them their cards."""
        return container_spec(self._settings, image, sources)

    def run_lock(self, run_dir: Path, cards_lock: Path) -> tuple[Path, str]:
        """The cluster shares cards between runs, so a run needs its folder alone."""
        return own_lock(run_dir)

    def open_round(self, folder: Path) -> BucketRound:
        """The round in a folder and a bucket."""
        bucket = self._store.of_round(f"{self._project}/{_run_name(folder.parent)}/{folder.name}")
        self._rounds[folder] = BucketRound(folder, bucket)
        return self._rounds[folder]

    def start(self, record: FolderRound, cards: Sequence[str], spec: WorkerSpec, attempt: int) -> WorkerGroup:
        """Create the round's Job, or attach to the one that an earlier driver of the same plan left. Raises `PoolError`."""
        cluster, settings = Cluster(self._settings), self._settings_for(spec)
        folder, kept = record.path, self._rounds[record.path]
        self._started[folder] = kept, cluster.namespace
        name = job_name(self._project, _run_name(folder.parent), folder.name)
        slots = [Slot(f"w{attempt}-{rank}", card, rank) for rank, card in enumerate(cards)]
        width = len(cards_in(cards[0])) if self._with_cards else 0
        request = JobRequest(
            name, self._project, round=name, pods=len(slots), cards=width, errand_url="",
            sources=_sources(spec), folders=(), environment=spec.environment, run=self._run, build=_run_name(folder.parent),
            plan=kept.plan_digest,
        )  # fmt: skip
        found = cluster.job(name)
        labels = {RUN_LABEL: label(self._run)} if self._run else {}
        attached = found is not None and can_attach(found, kept.plan_digest) and cluster.label_job(name, labels)
        if attached:
            slots = kept.slots.offered()
        else:
            delete_jobs(cluster, name)
        own, runner, root = job_document.OWN_FOLDER, "runner.pyz", str(Path(spec.root).absolute())
        with ExitStack() as undo:
            undo.callback(kept.close)
            errand = {
                "round": kept.invite(slots),
                "sources": [kept.put("sources", _pack(Path(_sources(spec)))), _sources(spec)],
                "unpack": [[kept.put("runner", _pack(build_runner(folder / runner))), own]],
                "unset": settings.unset_environment,
                "root": root,
                "command": [f"{own}/{runner}", "work", "--round-url", "-", "--scratch", f"{own}/worker"],
                "result": None,
            }
            url = kept.put("errand", _packed(errand))
            worker_group = KubernetesWorkerGroup(cluster, settings, kept, replace(request, errand_url=url), slots)
            undo.callback(worker_group.close)
            if not attached:
                worker_group.add_job(name, len(slots))
            undo.pop_all()
        return worker_group

    def pods(self) -> list[WorkerPod]:
        """See `ProjectPool`."""
        return [
            WorkerPod(folder.name, slot.worker, slot.card, namespace, pod)
            for folder, (record, namespace) in self._started.items()
            for slot, pod in record.slots.held()
        ]

    def forget(self, run_dir: Path) -> None:
        """Delete what the bucket has of the run. Raises `PoolError`."""
        self._store.of_round(f"{self._project}/{_run_name(run_dir)}").clear()

    def execute(self, command: Sequence[str], spec: WorkerSpec, folder: Path, timeout_s: float) -> Finished:
        """Run a command in a pod without a card. Raises `PoolError` when it cannot, or at the limit, queueing excluded."""
        cluster, settings = Cluster(self._settings), self._settings_for(spec)
        name = f"accel-ci-command-{uuid.uuid4().hex[:16]}"
        bucket = self._store.of_round(f"{self._project}/{name}")
        root, sources = str(Path(spec.root).absolute()), _sources(spec)
        try:
            signer = bucket.signer()
            bucket.put("sources", _pack(Path(sources)))
            bucket.put("folder", _pack(folder))
            errand = {
                "sources": [signer.get("sources"), sources],
                "unpack": [[signer.get("folder"), str(folder)]],
                "unset": settings.unset_environment,
                "root": root,
                "folder": str(folder),
                "command": list(command[1:]),
                "result": [signer.claim("result")[0], signer.claim("report")[0]],
            }
            bucket.put("errand", _packed(errand))
            request = JobRequest(
                name, self._project, name, 1, 0, signer.get("errand"), sources, (str(folder),), spec.environment, self._run,
            )  # fmt: skip
            cluster.create_job(job_manifest(settings, request))
            self._await_end(cluster, settings, name, timeout_s)
            left = sum(int(item["Size"]) for name, item in bucket.listed("").items() if name in ("report", "result"))
            if left > _LEFT_AT_MOST:
                raise PoolError(f"the pod of a command has left {left:,} bytes, and may leave {_LEFT_AT_MOST:,}")
            report, result = bucket.get("report"), bucket.get("result")
            if report is None or result is None:
                ended = [state for state in _pods(cluster, name) if state.end is not None]
                details = "; ".join(f"{state.end}: {state.log_tail.strip()[-2000:]}" for state in ended)
                raise PoolError(f"a command could not be run in a pod of {settings.image}: {details or 'its pods are gone'}")
        finally:
            cluster.delete_job(name)
            bucket.clear()
        try:
            unpack(io.BytesIO(result), folder)
            content = json.loads(report)
            return Finished(int(content["status"]), str(content["output"]))
        except (TarError, ValueError, TypeError, LookupError) as error:
            raise PoolError(f"what the pod of a command has left cannot be read: {error}") from error

    def end_round(self, folder: Path) -> None:
        """Delete the Jobs of a round that needs no workers any more. Raises `PoolError`."""
        delete_jobs(Cluster(self._settings), job_name(self._project, _run_name(folder.parent), folder.name))

    def remove_leftovers(self, is_over: IsOver, build: str = "", *, dry_run: bool = False) -> list[Leftover]:
        """Delete the project's Jobs whose run is over. A Job of an unknown run goes when it is too old for any run."""
        cluster, settings = Cluster(self._settings), self._settings
        limit_s = settings.queue_seconds + settings.round_seconds + settings.keep_seconds
        labels = {**job_document.MANAGED_BY, job_document.PROJECT_LABEL: label(self._project)}
        found = []
        for job in cluster.jobs(",".join(f"{key}={value}" for key, value in labels.items())):
            metadata = job["metadata"]
            run = metadata["labels"].get(RUN_LABEL, "")
            created = datetime.fromisoformat(metadata["creationTimestamp"].replace("Z", "+00:00"))
            age_s = time.time() - created.timestamp()
            made_for = (metadata.get("annotations") or {}).get(job_document.BUILD_ANNOTATION) or ""
            over = is_over(run) if run else None
            if over and not (build and made_for.startswith(f"{build}/")):
                why = f"its run {run} is over"
            elif over is None and age_s > limit_s:
                why = f"it is {age_s / 3600:.1f} hours old"
            else:
                continue
            if not dry_run and not cluster.delete_job(metadata["name"], job):
                continue  # it has changed since, so the next sweep decides
            name = f"Job {cluster.namespace}/{metadata['name']} of {made_for or 'a command'}"
            found.append(Leftover(name, why, "deleted"))
        return found

    def remove_old(self, *, dry_run: bool = False) -> list[Leftover]:
        """Delete rounds so old that no signed URL opens them any more."""
        store, found = self._store, []
        for run, changed in store.runs(self._project).items():
            if time.time() - changed > LONGEST_S:
                if not dry_run:
                    store.of_round(f"{self._project}/{run}").clear()
                rounds = f"rounds {store.prefix}/{self._project}/{run} in bucket {store.bucket}"
                found.append(Leftover(rounds, "unchanged for a week", "deleted"))
        return found

    def _settings_for(self, spec: WorkerSpec) -> KubernetesPoolSettings:
        """The settings with the image and the interpreter of pods. Raises `PoolError` when there is no image."""
        if (image := self._settings.image or spec.image) is None:
            advice = "add the section 'image' with a registry that the cluster pulls from, or set pool.image"
            raise PoolError(f"the build made no Docker image; {advice}")
        return self._settings.model_copy(update={"image": image, "python": self._settings.python or spec.python})

    def _await_end(self, cluster: Cluster, settings: KubernetesPoolSettings, name: str, timeout_s: float) -> None:
        """Wait until a pod of a Job has ended; raises `PoolError` when none can begin, and at the limit."""
        pending, missing = (
            PendingPods(settings),
            MissingPods(name, partial(cluster.job, name), partial(cluster.refusal_of_pods, name)),
        )
        running_since: float | None = None
        for _ in poll(_LOG, f"the command of {name} to end", 0.5):
            states = _pods(cluster, name)
            if any(state.end for state in states) or job_end(cluster.job(name)):
                return
            missing.look(len(states))
            if overdue := pending.overdue(states):
                raise pending.error(overdue[0])
            if any(state.waits is None for state in states):
                running_since = running_since or time.monotonic()
                if time.monotonic() - running_since > timeout_s:
                    raise PoolError(f"a command did not end within {timeout_s:g} s in a pod")


def _run_name(run_dir: Path) -> str:
    """A run's name wherever its data folder is: `<revision>/<variant>/<stage>`."""
    return "/".join(run_dir.absolute().parts[-3:])


def _pods(cluster: Cluster, job: str) -> list[PodState]:
    return [pod_state(pod) for pod in cluster.pods(f"{job_document.ROUND_LABEL}={job}")]


def _sources(spec: WorkerSpec) -> str:
    """The whole checkout that the root of the tests is in, since tests read files further up."""
    return str(checkout_root(Path(spec.root).absolute()))


def _packed(content: dict[str, Any]) -> bytes:
    return gzip.compress(json.dumps(content).encode())


def _pack(path: Path) -> bytes:
    """A folder, without what Python and pytest keep there, or a file as a gzipped tar; equal files make equal bytes."""

    def entry(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(info.name).name in ("__pycache__", ".pytest_cache"):
            return None
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        info.mode |= 0o444 | (0o111 if info.isdir() else 0)
        return info

    packed = io.BytesIO()
    file = gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=3, mtime=0)
    with file, tarfile.open(fileobj=file, mode="w") as tar:
        tar.add(path, arcname="." if path.is_dir() else path.name, filter=entry)
    return packed.getvalue()
