"""The state of pods and Jobs, from the documents of the cluster's API, and the patience with pods that wait."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accel_ci.config.pod_template import WORKER
from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.errors import PoolError
from accel_ci.process.waiting import WaitLog
from accel_ci.rounds.engine import WorkerEnd

STUCK = frozenset({
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CreatePodSandboxError",
})  # fmt: skip
"""Reasons of a waiting container that pass within moments or not at all."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"  # of a Job, names a local queue of Kueue

_LOG = logging.getLogger(__name__)
_STUCK_PATIENCE_S = 30.0


@dataclass(frozen=True)
class PodState:
    """A pod: it waits, or has ended; both are None while it runs.

    `waits` is the cluster's reason for waiting with its message, `reason` the reason alone. `log_tail` is the end of the
    output of a failed worker. `deleted` means that somebody has asked for the pod's end; its Job may know why.
    """

    name: str
    waits: str | None = None
    reason: str | None = None
    end: WorkerEnd | None = None
    log_tail: str = ""
    deleted: bool = False

    @property
    def failed(self) -> bool:
        """True when the pod ended before its work did."""
        return self.end is not None and self.end.is_loss


def pod_state(pod: Mapping[str, Any]) -> PodState:
    """The state of a pod."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    name = metadata["name"]
    state = _state(status)
    terminated = state.get("terminated")
    log_tail = (terminated or {}).get("message") or ""
    if status.get("reason"):  # Evicted, NodeLost, DeadlineExceeded, Preempting, UnexpectedAdmissionError …
        return PodState(name, end=_removal(status["reason"], status.get("message")), log_tail=log_tail)
    end = _end(terminated, status.get("phase"))
    if end is not None:
        deleted = bool(metadata.get("deletionTimestamp"))
        if deleted and end.is_loss:
            end = WorkerEnd("removed", f"the pod was deleted: {end}")
        return PodState(name, end=end, log_tail=log_tail, deleted=deleted)
    waiting = state.get("waiting")
    if waiting is not None and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return PodState(name, _with(waiting["reason"], waiting.get("message")), waiting["reason"])
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            reason = condition.get("reason") or "Unschedulable"
            return PodState(name, _with(reason, condition.get("message")), reason)
    if status.get("phase") == "Pending":
        reason = (waiting or {}).get("reason") or "Pending"
        return PodState(name, reason, reason)
    return PodState(name)


def _state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of the worker's container, or of one before it that cannot start or has failed."""
    for container in status.get("initContainerStatuses") or ():
        state: Mapping[str, Any] = container.get("state") or {}
        waits, code = (state.get("waiting") or {}).get("reason"), (state.get("terminated") or {}).get("exitCode", 0)
        if code or waits not in (None, "ContainerCreating", "PodInitializing"):
            return state
    worker = next((each for each in status.get("containerStatuses") or () if each["name"] == WORKER), None)
    return (worker or {}).get("state") or {}


def _end(terminated: Mapping[str, Any] | None, phase: str | None) -> WorkerEnd | None:
    """The end of a pod by its terminated container, else by its phase; None while it runs."""
    if terminated is None:
        if phase not in ("Succeeded", "Failed"):
            return None
        return WorkerEnd("finished", phase) if phase == "Succeeded" else WorkerEnd("failed", phase)
    code = int(terminated.get("exitCode", 0))
    if code == 0:  # a child that ran out of memory leaves the reason OOMKilled on a container that ended well
        return WorkerEnd("finished", "Completed")
    reason = terminated.get("reason") or "Error"
    number = terminated.get("signal") or (code - 128 if 128 < code < 193 else None)
    detail = f"{reason} (signal {number})" if number else f"{reason} (exit code {code})"
    return WorkerEnd("out_of_memory" if reason == "OOMKilled" else "killed" if number else "failed", detail)


def queue_wait(job: Mapping[str, Any] | None) -> str | None:
    """The reason why a Job that is suspended has no pods; None for one that is not.

    Kueue suspends a Job until its queue has room, and again to give its cards to a queue that they belong to.
    """
    if job is None or not (job.get("spec") or {}).get("suspend"):
        return None
    queue = (job["metadata"].get("labels") or {}).get(QUEUE_LABEL)
    return f"it waits in the queue {queue}" if queue else "it is suspended, though pool.queue names no queue"


class MissingPods:
    """Patience with a Job that has no pods: one that waits in a queue, or for others to leave a quota, and no other."""

    def __init__(self, name: str, job: Callable[[], Mapping[str, Any] | None], refusal: Callable[[], str | None]) -> None:
        """`job` asks the cluster for the Job, and `refusal` for its reason for making no pods."""
        self._name, self._job, self._refusal = name, job, refusal
        self._wait_log: WaitLog | None = None

    def look(self, pods: int) -> None:
        """Take in how many pods there are now. Raises `PoolError` if the cluster will make none."""
        if pods:
            self._wait_log = None
            return
        self._wait_log = self._wait_log or WaitLog(_LOG, f"the pods of {self._name}")
        if self._wait_log.seconds() < _STUCK_PATIENCE_S:
            return
        if (queued := queue_wait(self._job())) is not None:  # whatever was refused before it was suspended
            self._wait_log.still_waiting(queued)
            return
        if (why := self._refusal()) is None:
            return
        if "exceeded quota" not in why:
            advice = "set pool.cpu and pool.memory, or see to the quotas and policies of the namespace"
            raise PoolError(f"the cluster makes no pods for the Job {self._name}: {why}; {advice}")
        self._wait_log.still_waiting(why)


def job_end(job: Mapping[str, Any] | None) -> WorkerEnd | None:
    """The reason why a Job makes no more pods (complete, failed, past its deadline, deleted), else None."""
    return job_failure(job) or _condition(job, "Complete")


def job_failure(job: Mapping[str, Any] | None) -> WorkerEnd | None:
    """The reason why a Job ends its pods (failed, past its deadline, deleted), else None."""
    if job is None:
        return WorkerEnd("removed", "the Job is gone: somebody has deleted it")
    if job["metadata"].get("deletionTimestamp"):
        return WorkerEnd("removed", "the Job is being deleted")
    return _condition(job, "Failed")


def _condition(job: Mapping[str, Any] | None, kind: str) -> WorkerEnd | None:
    for condition in ((job or {}).get("status") or {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] == kind:
            return _removal(condition.get("reason") or kind, condition.get("message"))
    return None


def _removal(reason: str, message: str | None) -> WorkerEnd:
    """The end of pods that the cluster takes away for a reason."""
    return WorkerEnd("deadline" if reason == "DeadlineExceeded" else "removed", _with(reason, message))


def _with(reason: str, message: str | None) -> str:
    return f"{reason}: {' '.join(message.split())}" if message else reason


def cards_of_nodes(nodes: Sequence[Mapping[str, Any]], settings: KubernetesPoolSettings) -> list[int]:
    """The number of cards of each node that the node selector matches, busy ones included."""
    return [
        int((node.get("status") or {}).get("allocatable", {}).get(settings.resource, 0))
        for node in nodes
        if settings.node_selector.items() <= (node["metadata"].get("labels") or {}).items()
    ]


def too_few_cards(settings: KubernetesPoolSettings, wanted: int, cards: Sequence[int]) -> PoolError:
    """The error that no node has as many cards as a pod asks for."""
    where = " that pool.node_selector matches" if settings.node_selector else ""
    have = f"{max(cards)} at most" if any(cards) else "none"
    return PoolError(
        f"no node{where} has {wanted} {settings.resource}, of {len(cards)} node(s) ({have}): look at the device plugin, "
        "pool.resource and pool.node_selector; if such nodes are added on demand, set pool.nodes_on_demand"
    )


class PendingPods:
    """Remembers since when pods wait. Half a minute is allowed for a stuck start, `pool.queue_seconds` for a card."""

    def __init__(self, settings: KubernetesPoolSettings) -> None:
        self._settings = settings
        self._since: dict[tuple[str, bool], float] = {}
        self._causes: dict[str, str] = {}
        self._wait_log: WaitLog | None = None

    def overdue(self, states: Sequence[PodState]) -> list[PodState]:
        """The pods that have waited too long. Logs a long wait."""
        found = []
        now = time.monotonic()
        waiting = [(state, state.waits) for state in states if state.waits is not None and state.end is None]
        for state, waits in waiting:
            stuck = state.reason in STUCK
            since = self._since.setdefault((state.name, stuck), now)
            if stuck and ": " in waits and state.reason != "ImagePullBackOff":
                self._causes[state.name] = waits  # a later back-off hides the cause
            if now - since > (_STUCK_PATIENCE_S if stuck else self._settings.queue_seconds):
                found.append(state)
        if not waiting:
            self._wait_log = None
            return []
        self._wait_log = self._wait_log or WaitLog(_LOG, "pods to begin")
        self._wait_log.still_waiting(f"{len(waiting)} pod(s), first: {waiting[0][1]}")
        return found

    def error(self, state: PodState) -> PoolError:
        """The error that no pod can begin, as one of the overdue pods explains it."""
        waits = state.waits or ""
        if state.reason in STUCK:
            first = self._causes.get(state.name)
            cause = f"{waits} ({first})" if first and first != waits else waits
            problem = f"no pod can start with the image {self._settings.image}: {cause}"
            return PoolError(f"{problem}; fix pool.image or its pull secret")
        return PoolError(
            f"no pod began within {self._settings.queue_seconds:g} s (pool.queue_seconds): {waits}; everything is given "
            f"back. Look at the free {self._settings.resource} of the cluster, at pool.node_selector, and at quotas"
        )
