"""What the cluster says of pods and Jobs, in its own words: pure functions on the documents of its API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from accel_ci.config.pod_template import WORKER

STUCK = frozenset(
    {
        "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
        "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CreatePodSandboxError",
    }
)  # fmt: skip
"""Reasons of a container to wait that pass by themselves at best within moments."""


@dataclass(frozen=True)
class PodState:
    """A pod: why it waits, or how it ended, in the cluster's word with its message; both None while it runs.

    `reason` is that word alone. `said` is the end of what its worker printed, when it failed. `deleted` says that it was
    told to end; why, its Job may know.
    """

    name: str
    waits: str | None = None
    ended: str | None = None
    reason: str | None = None
    said: str = ""
    deleted: bool = False


def pod_state(pod: Mapping[str, Any]) -> PodState:
    """The state of a pod."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    name = metadata["name"]
    container: Mapping[str, Any] = next((c for c in status.get("containerStatuses") or () if c["name"] == WORKER), {})
    state = container.get("state") or {}
    terminated = state.get("terminated")
    if status.get("reason"):  # Evicted, NodeLost, DeadlineExceeded, Preempting, UnexpectedAdmissionError …
        said = (terminated or {}).get("message") or ""
        word = _with(status["reason"], status.get("message"))
        return PodState(name, ended=word, reason=status["reason"], said=said)
    is_deleted = bool(metadata.get("deletionTimestamp"))
    deleted = "the pod was deleted: " if is_deleted else ""
    if terminated is not None:
        reason, how = how_it_ended(terminated)
        how = f"{deleted}{how}" if reason != "Completed" else how
        return PodState(name, ended=how, reason=reason, said=terminated.get("message") or "", deleted=is_deleted)
    if status.get("phase") in ("Succeeded", "Failed"):
        return PodState(name, ended=f"{deleted}{status['phase']}", reason=str(status["phase"]), deleted=is_deleted)
    waiting = state.get("waiting")
    if waiting is not None and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return PodState(name, waits=_with(waiting["reason"], waiting.get("message")), reason=waiting["reason"])
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            reason = condition.get("reason") or "Unschedulable"
            return PodState(name, waits=_with(reason, condition.get("message")), reason=reason)
    if status.get("phase") == "Pending":
        word = (waiting or {}).get("reason") or "Pending"
        return PodState(name, waits=word, reason=word)
    return PodState(name)


def how_it_ended(terminated: Mapping[str, Any]) -> tuple[str, str]:
    """The cluster's word for the end of a container, and that word with the exit code or signal."""
    code = int(terminated.get("exitCode", 0))
    if code == 0:  # a child that ran out of memory leaves the word OOMKilled on a container that ended well
        return "Completed", "Completed"
    reason = terminated.get("reason") or "Error"
    number = terminated.get("signal") or (code - 128 if 128 < code < 193 else None)
    return reason, f"{reason} (signal {number})" if number else f"{reason} (exit code {code})"


def job_failure(job: Mapping[str, Any] | None) -> str | None:
    """Why a Job makes no more pods (`DeadlineExceeded`, `BackoffLimitExceeded`, `Complete`, that it is gone), else None."""
    return job_verdict(job) or _condition(job, "Complete")


def job_verdict(job: Mapping[str, Any] | None) -> str | None:
    """Why a Job ends its pods (`DeadlineExceeded`, that it is gone), else None."""
    if job is None:
        return "the Job is gone: somebody has deleted it"
    if job["metadata"].get("deletionTimestamp"):
        return "the Job is being deleted"
    return _condition(job, "Failed")


def _condition(job: Mapping[str, Any] | None, kind: str) -> str | None:
    for condition in ((job or {}).get("status") or {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] == kind:
            return _with(condition.get("reason") or kind, condition.get("message"))
    return None


def timestamp(text: str) -> float:
    """A time of the API as seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _with(word: str, message: str | None) -> str:
    return f"{word}: {' '.join(message.split())}" if message else word
