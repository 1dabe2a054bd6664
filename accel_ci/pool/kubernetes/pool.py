"""The Kubernetes pool: a worker is a pod of a Job, and the round is kept in a bucket.

The scheduler of the cluster is the engine: pods wait for cards, and pods that fail are replaced by their Job. A pod claims
a slot of the round, which gives it its worker's name and card: the worker group knows pods by their slots. Jobs are
named after (project, run, round): a driver that starts again finds the Job of the one before and follows its pods.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from accel_ci.config.settings import KubernetesPoolSettings
from accel_ci.errors import PoolError
from accel_ci.model import WorkerSpec
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.job import (
    GRACE_S,
    OWN_FOLDER,
    PLAN_ANNOTATION,
    ROUND_LABEL,
    RUN_LABEL,
    JobRequest,
    folders_of,
    job_manifest,
    job_name,
    label,
)
from accel_ci.pool.kubernetes.pods import STUCK, PodState, job_failure, job_verdict, pod_state
from accel_ci.pool.runner_package import build_runner
from accel_ci.process.run import Finished
from accel_ci.rounds.bucket_rounds import BucketRounds
from accel_ci.rounds.bucket_sync import DRIVER, BucketSync, Slot
from accel_ci.rounds.engine import WorkerGroup, WorkerState, cards_in
from accel_ci.rounds.round_bucket import RoundStore
from accel_ci.rounds.round_record import RoundRecord
from accel_ci.runner import round_folder
from accel_ci.storage.archive import unpack

_STUCK_PATIENCE_S = 30.0
_LOOKS_AT_PODS_PER_SECOND = 256
_RUNNER = "runner.pyz"


class KubernetesPool:
    """Runs workers as pods."""

    def __init__(self, settings: KubernetesPoolSettings, store: RoundStore, project: str, run: str = "") -> None:
        """Nothing is reached yet. `project` tells Jobs of projects in one namespace apart, `run` says who asks for them."""
        self._settings, self._store, self._project, self._run = settings, store, project, run
        self._rounds: dict[Path, BucketRounds] = {}

    def open_round(self, folder: Path) -> RoundRecord:
        """The round is in the bucket, and a bucket sync keeps the folder like it."""
        run_dir = folder.parent
        if run_dir not in self._rounds:
            self._rounds[run_dir] = BucketRounds(self._store, f"{self._project}/{_run_name(run_dir)}")
        return self._rounds[run_dir].open(folder)

    def start(self, folder: Path, cards: Sequence[str], spec: WorkerSpec, attempt: int) -> WorkerGroup:
        """Make the round's Job, or take up the one that an earlier driver of the same plan has left. Raises `PoolError`."""
        cluster, settings = Cluster(self._settings), self._settings_for(spec)
        bucket_sync = self._rounds[folder.parent].bucket_sync(folder)
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
            and _can_attach(found, bucket_sync.plan_digest)
            and cluster.label_job(name, {RUN_LABEL: label(self._run)} if self._run else {})
        )
        if attached:
            slots = bucket_sync.invited()
        else:
            _delete_jobs(cluster, name)
        try:
            invitation = bucket_sync.invite(slots)
            errand = {
                "unpack": [
                    [bucket_sync.put("runner", _tar_of(build_runner(folder / _RUNNER))), OWN_FOLDER],
                    [
                        bucket_sync.put("sources", pack_folder(Path(spec.root))),
                        str(Path(spec.root).absolute()),
                    ],
                ],
                "unset": settings.unset_environment,
                "root": str(Path(spec.root).absolute()),
                "command": [f"{OWN_FOLDER}/{_RUNNER}", "work", "--round-url", "-", "--scratch", f"{OWN_FOLDER}/worker"],
                "round": invitation,
                "result": None,
            }
            url = bucket_sync.put("errand", gzip.compress(json.dumps(errand).encode()))
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
        """Nothing to do: what an earlier driver left running is taken up by `start`."""

    def forget(self, run_dir: Path) -> None:
        """Delete what the bucket has of the run. Raises `PoolError`."""
        self._store.of_round(f"{self._project}/{_run_name(run_dir)}").clear()

    def execute(self, command: Sequence[str], spec: WorkerSpec, folder: Path, timeout_s: float) -> Finished:
        """Run a command in a pod without a card. Raises `PoolError` when it cannot, or at the limit, queueing apart."""
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
                "result": [signer.claim("result")[0], signer.claim("said")[0]],
            }
            bucket.put("errand", gzip.compress(json.dumps(errand).encode()))
            request = JobRequest(
                name, self._project, name, 1, 0, signer.get("errand"), folders_of(root, [str(folder)]), spec.environment,
                self._run,
            )  # fmt: skip
            cluster.create_job(job_manifest(settings, request))
            self._await_end(cluster, settings, name, timeout_s)
            said, result = bucket.get("said"), bucket.get("result")
            if said is None or result is None:
                states = [pod_state(pod) for pod in cluster.pods(f"{ROUND_LABEL}={name}")]
                words = "; ".join(f"{state.ended}: {state.said.strip()[-2000:]}" for state in states if state.ended)
                raise PoolError(f"a command could not be run in a pod of {settings.image}: {words or 'its pods are gone'}")
        finally:
            cluster.delete_job(name)
            bucket.clear()
        unpack(io.BytesIO(result), folder)
        content = json.loads(said)
        return Finished(int(content["status"]), str(content["output"]))

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
        watch = _Watch(settings)
        running_since: float | None = None
        while True:
            states = [pod_state(pod) for pod in cluster.pods(f"{ROUND_LABEL}={name}")]
            if any(state.ended for state in states) or job_failure(cluster.job(name)):
                return
            hopeless = watch.hopeless(states)
            if hopeless:
                raise PoolError(watch.verdict(hopeless[0]))
            if any(state.waits is None for state in states):
                running_since = running_since or time.monotonic()
                if time.monotonic() - running_since > timeout_s:
                    raise PoolError(f"a command did not end within {timeout_s:g} s in a pod")
            time.sleep(0.5)


class KubernetesWorkerGroup:
    """The pods of one round."""

    def __init__(
        self,
        cluster: Cluster,
        settings: KubernetesPoolSettings,
        bucket_sync: BucketSync,
        request: JobRequest,
        slots: Sequence[Slot],
    ) -> None:
        """The slots are offered; their pods may be there already."""
        self._cluster, self._settings, self._bucket_sync, self._request = cluster, settings, bucket_sync, request
        self._slots = list(slots)
        self._watch = _Watch(settings)
        self._known: dict[str, PodState] = {}
        self._missing: dict[str, int] = {}
        self._ended: dict[str, str] = {}
        self._charged: set[str] = set()
        self._job_verdict: str | None = None
        self._began = time.monotonic()
        self._looked: float | None = None
        self._closed = False

    def add_job(self, name: str, pods: int) -> None:
        """Make a Job for that many pods. Raises `PoolError`."""
        made = self._cluster.create_job(job_manifest(self._settings, replace(self._request, name=name, pods=pods)))
        there = None if made else self._cluster.job(name)
        if not made and (there is None or not _can_attach(there, self._request.plan)):
            raise PoolError(f"the Job {name} of an earlier plan is still being deleted; run the same again in a minute")

    def workers(self) -> Sequence[WorkerState]:
        """All slots as workers: running while they wait for a pod. Raises `PoolError` when no pod can begin."""
        every_s = max(1.0, len(self._slots) / _LOOKS_AT_PODS_PER_SECOND)
        if not self._closed and (self._looked is None or time.monotonic() - self._looked >= every_s):
            self._look()
            self._looked = time.monotonic()
        return [WorkerState(slot.worker, slot.card, self._ended.get(slot.worker)) for slot in self._slots]

    def replace(self, worker: str) -> None:
        """Offer one more slot on the card of a worker that has ended, to the pod that its Job makes in place of its own."""
        card = next(slot.card for slot in self._slots if slot.worker == worker)
        name = f"{self._slots[0].worker.partition('-')[0]}-{len(self._slots)}"
        slot = Slot(name, card, 0)
        self._slots.append(slot)
        self._bucket_sync.add_slot(slot)
        job = self._cluster.job(self._request.name)
        if job is None or (job.get("status") or {}).get("succeeded"):
            # Of a Job of which one pod has succeeded, no further pod that fails is replaced.
            self.add_job(f"{self._request.name}-{name}", 1)

    def stop(self, worker: str) -> None:
        """End the pod of one worker; a worker that still waits for a pod is left waiting."""
        pod = self._bucket_sync.holders().get(worker)
        if pod in self._known:
            self._cluster.delete_pod(pod)

    def close(self) -> None:
        """Delete the Job with its pods, give these the time to send what they have, and end the traffic with the bucket."""
        if self._closed:
            return
        self._closed = True
        try:
            _delete_jobs(self._cluster, self._request.round)
        finally:
            self._bucket_sync.close()

    # --- what has become of the pods ----------------------------------------------------------------------------

    def _look(self) -> None:
        holders = self._bucket_sync.holders()  # before the pods: whoever has a slot by now is among them, or gone
        pods = {state.name: state for state in map(pod_state, self._cluster.pods(f"{ROUND_LABEL}={self._request.round}"))}
        self._known.update(pods)
        for slot in self._slots:
            pod = holders.get(slot.worker)
            if slot.worker in self._ended or pod is None:
                continue
            if pod == DRIVER:
                self._end(slot, "an earlier driver gave it up", "")
            else:
                how = self._end_of(pod, pods)
                if how is not None and self._bucket_sync.drained(slot.worker):
                    self._end(slot, how, self._known[pod].said if pod in self._known else "")
        self._judge_slots_without_pods(pods, holders)

    def _end_of(self, pod: str, pods: Mapping[str, PodState]) -> str | None:
        """How a pod ended; one that is missing twice running is gone."""
        if pod in pods:
            self._missing.pop(pod, None)
            ended, deleted = pods[pod].ended, pods[pod].deleted and pods[pod].reason != "Completed"
            return (self._why_pods_are_deleted() if ended and deleted else None) or ended
        self._missing[pod] = self._missing.get(pod, 0) + 1
        if self._missing[pod] < 2:
            return None
        known = self._known.get(pod)
        if known is not None and known.ended is not None:
            return known.ended
        return job_failure(self._cluster.job(self._request.name)) or "the pod is gone: deleted, preempted, or its node lost"

    def _why_pods_are_deleted(self) -> str | None:
        """The verdict on the Job, read once and then kept: what ends all pods at once may end thousands."""
        if self._job_verdict is None:
            self._job_verdict = job_verdict(self._cluster.job(self._request.name))
        return self._job_verdict

    def _judge_slots_without_pods(self, pods: Mapping[str, PodState], holders: Mapping[str, str]) -> None:
        """End slots that no pod will come for: of pods that failed before they began, that cannot begin, or are too many."""
        free = [slot for slot in self._slots if slot.worker not in holders and slot.worker not in self._ended]
        if not free:
            return
        at_work = set(holders.values()) - {DRIVER}
        idle = [state for state in pods.values() if state.name not in at_work]
        hopeless = self._watch.hopeless(idle)
        if hopeless and not at_work:
            raise PoolError(self._watch.verdict(hopeless[0]))
        if not pods and not at_work and time.monotonic() - self._began > self._settings.queue_seconds:
            why = job_failure(self._cluster.job(self._request.name)) or "it waits in a queue, or a quota forbids them"
            raise PoolError(
                f"the Job {self._request.name} got no pods within {self._settings.queue_seconds:g} s (pool.queue_seconds): "
                f"{why}; everything is given back"
            )
        over = (self._bucket_sync.folder / round_folder.ROUND_OVER).exists()
        failed = [state for state in idle if state.ended is not None and state.reason != "Completed"]
        for state in (*failed, *hopeless):
            if state.name not in self._charged and free and not self._has_slot(state.name):
                self._charged.add(state.name)
                self._withdraw(free.pop(0), state.ended or state.waits or "", state)
        living = [state for state in idle if state.ended is None]
        if free and (over or not living):
            word = "the round is over" if over else job_failure(self._cluster.job(self._request.name))
            for slot in free if word is not None else ():
                self._withdraw(slot, word or "")

    def _has_slot(self, pod: str) -> bool:
        """Whether a pod has a slot, or may have one that is not known yet."""
        return not self._bucket_sync.drained(f"pod {pod}") or pod in self._bucket_sync.holders().values()

    def _withdraw(self, slot: Slot, word: str, pod: PodState | None = None) -> None:
        """End a slot, unless a pod has it by now; such a pod is looked at the next time."""
        if self._bucket_sync.withdraw_slot(slot.worker):
            said = (pod.said or self._cluster.log(pod.name)) if pod is not None and pod.ended is not None else ""
            self._end(slot, word, said)

    def _end(self, slot: Slot, how: str, said: str) -> None:
        self._ended[slot.worker] = how
        own = self._bucket_sync.folder / round_folder.WORKERS / slot.worker
        own.mkdir(parents=True, exist_ok=True)
        (own / round_folder.LOG).write_text(f"{said.strip()}\n{how}\n" if said.strip() else f"{how}\n", "utf-8")


class _Watch:
    """Sees which pods have no hope to begin: stuck in their start for half a minute, or too long in the queue for a card."""

    def __init__(self, settings: KubernetesPoolSettings) -> None:
        self._settings = settings
        self._waiting: dict[tuple[str, bool], float] = {}
        self._words: dict[str, str] = {}

    def hopeless(self, states: Sequence[PodState]) -> list[PodState]:
        """Those of the pods that wait without hope."""
        found = []
        clock = time.monotonic()
        for state in states:
            if state.waits is None or state.ended is not None:
                continue
            stuck = state.reason in STUCK
            since = self._waiting.setdefault((state.name, stuck), clock)
            if stuck and ": " in state.waits and state.reason != "ImagePullBackOff":
                self._words[state.name] = state.waits  # what the back-off stands for
            if clock - since > (_STUCK_PATIENCE_S if stuck else self._settings.queue_seconds):
                found.append(state)
        return found

    def verdict(self, state: PodState) -> str:
        """What to tell a person of a pod without hope, when no other could begin."""
        said = state.waits or ""
        if state.reason in STUCK:
            first = self._words.get(state.name)
            cause = f"{said} ({first})" if first and first != said else said
            return f"no pod can start with the image {self._settings.image}: {cause}; fix pool.image or its pull secret"
        return (
            f"no pod began within {self._settings.queue_seconds:g} s (pool.queue_seconds): {said}; everything is given "
            f"back. Look at the free {self._settings.resource} of the cluster, at pool.node_selector, and at quotas"
        )


def _run_name(run_dir: Path) -> str:
    """What names a run wherever its data folder lies: `<revision>/<variant>/<stage>`."""
    return "/".join(run_dir.absolute().parts[-3:])


def _can_attach(job: Mapping[str, Any], plan: str) -> bool:
    annotations = job["metadata"].get("annotations") or {}
    return annotations.get(PLAN_ANNOTATION) == plan and job_failure(job) is None


def _delete_jobs(cluster: Cluster, round_name: str) -> None:
    """Delete the Jobs of a round, and wait until those of their pods that run have ended or have had the time to."""
    selector = f"{ROUND_LABEL}={round_name}"
    names = [job["metadata"]["name"] for job in cluster.jobs(selector)]
    for name in names:
        cluster.delete_job(name)
    deadline = time.monotonic() + GRACE_S + 15
    while time.monotonic() < deadline:
        states = [pod_state(pod) for pod in cluster.pods(selector)]
        if not any(state.ended is None and state.waits is None for state in states) and not cluster.jobs(selector):
            return
        time.sleep(0.5)


def pack_folder(folder: Path) -> bytes:
    """A folder as a gzipped tar file; what git and Python keep for themselves is left out. Equal files make equal bytes."""

    def entry(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(info.name).name in (".git", "__pycache__", ".pytest_cache"):
            return None
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = 0
        info.mode |= 0o444 | (0o111 if info.isdir() else 0)
        return info

    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=3, mtime=0) as file,
        tarfile.open(fileobj=file, mode="w") as tar,
    ):
        tar.add(folder, arcname=".", filter=entry)
    return packed.getvalue()


def _tar_of(file: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(file, arcname=_RUNNER)
    return packed.getvalue()
