"""Pods that wait: for a moment, for too long, and what the error says."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.errors import PoolError
from accel_ci.pool.kubernetes.pods import MissingPods, PendingPods, PodState, queue_wait
from accel_ci.rounds.engine import WorkerEnd


def pending(**options: Any) -> PendingPods:
    return PendingPods(KubernetesPoolSettings(kind="kubernetes", image="i:1", resource="example.com/card", **options))


def test_a_pod_may_wait_for_a_card_as_long_as_the_queue_allows() -> None:
    waiting = PodState("p", "Unschedulable: no cards", "Unschedulable")
    ended = PodState("q", end=WorkerEnd("finished", "Completed"))
    assert pending().overdue([waiting, ended, PodState("r")]) == []
    impatient = pending(queue_seconds=1e-9)
    assert impatient.overdue([waiting]) == []
    assert impatient.overdue([waiting, ended, PodState("r")]) == [waiting]
    assert "no pod began within 1e-09 s (pool.queue_seconds): Unschedulable: no cards" in str(impatient.error(waiting))


def test_a_back_off_is_explained_by_its_cause() -> None:
    pods = pending()
    pods.overdue([PodState("p", "ErrImagePull: no such host", "ErrImagePull")])
    backed_off = PodState("p", "ImagePullBackOff: waiting", "ImagePullBackOff")
    pods.overdue([backed_off])
    expected = "no pod can start with the image i:1: ImagePullBackOff: waiting (ErrImagePull: no such host); fix pool.image"
    assert expected in str(pods.error(backed_off))


def test_a_long_wait_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_ci.process.waiting._LONG_S", 0.0)
    with caplog.at_level(logging.INFO, "accel_ci.pool"):
        pending().overdue([PodState("p", "Unschedulable: no cards", "Unschedulable")])
    [record] = caplog.records
    assert "waiting for pods to begin: 1 pod(s), first: Unschedulable: no cards" in record.getMessage()


def suspended(queue: str | None = "cards") -> dict[str, Any]:
    """The document of a Job that Kueue has not admitted yet."""
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    return {"metadata": {"name": "j", "labels": labels}, "spec": {"suspend": True}, "status": {}}


def test_a_suspended_job_waits_in_its_queue_whatever_was_refused_before(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel_ci.pool.kubernetes.pods._STUCK_PATIENCE_S", 0.0)
    monkeypatch.setattr("accel_ci.process.waiting._LONG_S", 0.0)
    refused = "pods is forbidden: no such policy"
    job = suspended()
    missing = MissingPods("j", lambda: job, lambda: refused)
    with caplog.at_level(logging.INFO, "accel_ci.pool"):
        missing.look(0)
    assert "waiting for the pods of j: it waits in the queue cards" in caplog.records[-1].getMessage()
    job["spec"]["suspend"] = False
    with pytest.raises(PoolError, match=refused):
        missing.look(0)


def test_only_a_suspended_job_waits_in_a_queue() -> None:
    assert queue_wait(suspended()) == "it waits in the queue cards"
    assert queue_wait(suspended(None)) == "it is suspended, though pool.queue names no queue"
    admitted = suspended()
    del admitted["spec"]["suspend"]
    assert (queue_wait(admitted), queue_wait(None)) == (None, None)
