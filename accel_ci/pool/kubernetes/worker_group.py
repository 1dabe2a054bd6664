"""The pods of one round as its worker group.

A pod claims a slot of the round, which gives it its worker's name and card, so the group knows pods by their slots. Their
Job replaces pods that fail.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.errors import PoolError
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.job import GRACE_S, PLAN_ANNOTATION, ROUND_LABEL, JobRequest, job_manifest
from accel_ci.pool.kubernetes.pods import MissingPods, PendingPods, PodState, job_end, job_failure, pod_state, queue_wait
from accel_ci.process.waiting import poll
from accel_ci.rounds.bucket_records import Slot
from accel_ci.rounds.bucket_round import BucketRound
from accel_ci.rounds.engine import WorkerEnd, WorkerState
from accel_ci.rounds.folder_round import DRIVER
from accel_ci.runner import round_folder

_LOG = logging.getLogger(__name__)
_LOOKS_AT_PODS_PER_SECOND = 256


def can_attach(job: Mapping[str, Any], plan: str) -> bool:
    """True when a Job still makes pods for a plan."""
    annotations = job["metadata"].get("annotations") or {}
    return annotations.get(PLAN_ANNOTATION) == plan and job_end(job) is None


def delete_jobs(cluster: Cluster, round_name: str) -> None:
    """Delete the Jobs of a round, and wait until their running pods have ended or have had time to. Raises `PoolError`."""
    selector = f"{ROUND_LABEL}={round_name}"
    for job in cluster.jobs(selector):
        cluster.delete_job(job["metadata"]["name"])
    for _ in poll(_LOG, f"the pods of {round_name} to end", 0.5, GRACE_S + 15):
        states = map(pod_state, cluster.pods(selector))
        if not any(state.end is None and state.waits is None for state in states) and not cluster.jobs(selector):
            return


class KubernetesWorkerGroup:
    """The pods of one round."""

    def __init__(
        self, cluster: Cluster, settings: KubernetesPoolSettings, record: BucketRound, request: JobRequest,
        slots: Sequence[Slot],
    ) -> None:  # fmt: skip
        """The slots are offered; their pods may exist already."""
        self._cluster, self._settings, self._record, self._request = cluster, settings, record, request
        self._slots = list(slots)
        self._pending = PendingPods(settings)
        ask, why_none = partial(cluster.job, request.name), partial(cluster.refusal_of_pods, request.name)
        self._no_pods = MissingPods(request.name, ask, why_none)
        self._known: dict[str, PodState] = {}
        self._missing: Counter[str] = Counter()  # looks in a row
        self._ended: dict[str, WorkerEnd] = {}
        self._charged: set[str] = set()
        self._job_failure: WorkerEnd | None = None
        self._had_pods = time.monotonic()  # or when this began
        self._looked: float | None = None
        self._closed = False

    def add_job(self, name: str, pods: int) -> None:
        """Create a Job for that many pods. Raises `PoolError`."""
        if not self._cluster.create_job(job_manifest(self._settings, replace(self._request, name=name, pods=pods))):
            there = self._cluster.job(name)
            if there is None or not can_attach(there, self._request.plan):
                raise PoolError(f"the Job {name} of an earlier plan is still being deleted; run the same again in a minute")

    def workers(self) -> Sequence[WorkerState]:
        """All slots as workers: running while they wait for a pod. Raises `PoolError` when no pod can begin."""
        every_s = max(1.0, len(self._slots) / _LOOKS_AT_PODS_PER_SECOND)
        if not self._closed and (self._looked is None or time.monotonic() - self._looked >= every_s):
            self._look()
            self._looked = time.monotonic()
        return [WorkerState(slot.worker, slot.card, self._ended.get(slot.worker)) for slot in self._slots]

    def replace(self, worker: str) -> None:
        """Offer another slot on the card of a worker that has ended, for the pod that the Job makes as a replacement."""
        card = next(slot.card for slot in self._slots if slot.worker == worker)
        name = f"{self._slots[0].worker.partition('-')[0]}-{len(self._slots)}"
        slot = Slot(name, card, 0)
        self._slots.append(slot)
        self._record.slots.offer([slot])
        job = self._cluster.job(self._request.name)
        if job is None or (job.get("status") or {}).get("succeeded"):
            self.add_job(f"{self._request.name}-{name}", 1)  # after a pod's success, a Job replaces no pod that fails

    def stop(self, worker: str) -> None:
        """End the pod of one worker; a worker that still waits for a pod is left waiting."""
        pod = self._record.holders().get(worker)
        if pod in self._known:
            self._cluster.delete_pod(pod)

    def close(self) -> None:
        """Delete the Jobs with their pods, give these time to send their events, and stop the bucket sync."""
        if self._closed:
            return
        self._closed = True
        try:
            delete_jobs(self._cluster, self._request.round)
        finally:
            self._record.close()

    def _look(self) -> None:
        holders = self._record.holders()  # before the pods: whoever has a slot by now is among them, or gone
        pods = {state.name: state for state in map(pod_state, self._cluster.pods(f"{ROUND_LABEL}={self._request.round}"))}
        self._known.update(pods)
        if any(state.end is None for state in pods.values()):
            self._had_pods = time.monotonic()
        for slot in self._slots:
            pod = holders.get(slot.worker)
            if slot.worker in self._ended or pod is None:
                continue
            if pod == DRIVER:
                self._end(slot, WorkerEnd("not_started", "an earlier driver gave it up"), "")
            else:
                end = self._end_of(pod, pods)
                if end is not None and self._record.drained(slot.worker):
                    self._end(slot, end, self._known[pod].log_tail if pod in self._known else "")
        self._end_slots_without_pods(pods, holders)

    def _end_of(self, pod: str, pods: Mapping[str, PodState]) -> WorkerEnd | None:
        """The end of a pod; one that is missing twice in a row is gone."""
        if pod in pods:
            self._missing.pop(pod, None)
            return (self._why_pods_are_deleted() if pods[pod].failed and pods[pod].deleted else None) or pods[pod].end
        self._missing[pod] += 1
        if self._missing[pod] < 2:
            return None
        known = self._known.get(pod)
        if known is not None and known.end is not None:
            return known.end
        gone = WorkerEnd("removed", "the pod is gone: deleted, preempted, or its node lost")
        return job_end(self._cluster.job(self._request.name)) or gone

    def _why_pods_are_deleted(self) -> WorkerEnd | None:
        """The failure of the Job, read once and then kept: what ends all pods at once may end thousands."""
        self._job_failure = self._job_failure or job_failure(self._cluster.job(self._request.name))
        return self._job_failure

    def _end_slots_without_pods(self, pods: Mapping[str, PodState], holders: Mapping[str, str]) -> None:
        """End slots that no pod will claim: their pods failed before they began or cannot begin, or the slot is spare."""
        free = [slot for slot in self._slots if slot.worker not in holders and slot.worker not in self._ended]
        if not free:
            return
        at_work = set(holders.values()) - {DRIVER}
        idle = [state for state in pods.values() if state.name not in at_work]
        overdue = self._pending.overdue(idle)
        if overdue and not at_work:
            raise self._pending.error(overdue[0])
        if not at_work:
            self._no_pods.look(len(pods))
        if not (pods and not at_work) and time.monotonic() - self._had_pods > self._settings.queue_seconds:
            job = self._cluster.job(self._request.name)
            why = job_end(job) or queue_wait(job) or "a quota may forbid them"
            if at_work:  # the pods that there were are gone, as where Kueue needs their cards for another queue
                for slot in free:
                    self._withdraw(slot, WorkerEnd("not_started", f"no pod for {self._settings.queue_seconds:g} s: {why}"))
                return
            late = f"the Job {self._request.name} got no pods within {self._settings.queue_seconds:g} s (pool.queue_seconds)"
            raise PoolError(f"{late}: {why}; everything is given back")
        over = (self._record.path / round_folder.ROUND_OVER).exists()
        for state in (*(state for state in idle if state.failed), *overdue):
            if state.name not in self._charged and free and not self._has_slot(state.name):
                self._charged.add(state.name)
                self._withdraw(free.pop(0), state.end or WorkerEnd("not_started", state.waits or ""), state)
        if free and (over or all(state.end is not None for state in idle)):
            not_needed = WorkerEnd("not_needed", "the round is over")
            if (end := not_needed if over else job_end(self._cluster.job(self._request.name))) is not None:
                for slot in free:
                    self._withdraw(slot, end)

    def _has_slot(self, pod: str) -> bool:
        """True when a pod has a slot, or may have one that is not known yet."""
        return not self._record.drained(f"pod {pod}") or pod in self._record.holders().values()

    def _withdraw(self, slot: Slot, end: WorkerEnd, pod: PodState | None = None) -> None:
        """End a slot, unless a pod has it by now; the next look finds such a pod."""
        if self._record.slots.withdraw(slot.worker):
            log_tail = (pod.log_tail or self._cluster.log(pod.name)) if pod is not None and pod.end is not None else ""
            self._end(slot, end, log_tail)

    def _end(self, slot: Slot, end: WorkerEnd, log_tail: str) -> None:
        self._ended[slot.worker] = end
        own = self._record.path / round_folder.WORKERS / slot.worker
        own.mkdir(parents=True, exist_ok=True)
        (own / round_folder.LOG).write_text(f"{log_tail.strip()}\n{end.detail}\n".lstrip("\n"), "utf-8")
