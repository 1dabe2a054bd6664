"""Pods that wait: for a moment, for too long, and what the error says."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.pool.kubernetes.pods import PendingPods, PodState
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
