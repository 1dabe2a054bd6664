"""Metrics of the relay for Prometheus: what this process has done, and the state of the queue.

Names and units follow Prometheus' own rules (prometheus.io/docs/practices/naming).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from accel_ci.relay.server.jobs import Jobs, Taken
from accel_ci.relay.server.outbox import ForwardClaim, Outbox
from accel_ci.relay.server.queue import GITHUB, Claim, Queue, Settlement

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600)
_JOB_SECONDS = (10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


class RelayMetrics:
    """The counters of one server or worker."""

    def __init__(self, queue: Queue, jobs: Jobs, outbox: Outbox) -> None:
        """Count from zero. The state of `queue`, `jobs` and `outbox` is read whenever somebody asks."""
        self._registry = CollectorRegistry()
        self._webhooks = Counter(
            "accel_ci_relay_webhooks", "Webhooks by the status of the answer.", ["event", "status"], registry=self._registry
        )
        self._answer = Histogram(
            "accel_ci_relay_webhook_seconds", "From the headers to the answer.", registry=self._registry, buckets=_SECONDS
        )
        self._tries = Counter(
            "accel_ci_relay_tries", "Tries to dispatch, by their end.", ["downstream", "end"], registry=self._registry
        )
        self._age = Histogram(
            "accel_ci_relay_dispatch_seconds",
            "From the receipt of a delivery until GitHub took its dispatch.",
            ["downstream"],
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._forwards = Counter(
            "accel_ci_relay_forward_tries",
            "Tries to forward, by their end.",
            ["destination", "end"],
            registry=self._registry,
        )
        self._callbacks = Counter(
            "accel_ci_relay_callbacks", "Callbacks by their end: a step, or a status.", ["end"], registry=self._registry
        )
        self._queue_s = Histogram(
            "accel_ci_relay_job_queue_seconds",
            "From the dispatch of a job until it was in progress.",
            ["downstream"],
            registry=self._registry,
            buckets=_JOB_SECONDS,
        )
        self._execution_s = Histogram(
            "accel_ci_relay_job_execution_seconds",
            "From the start of a job to its end.",
            ["downstream"],
            registry=self._registry,
            buckets=_JOB_SECONDS,
        )
        self._lost = Counter(
            "accel_ci_relay_jobs_lost", "Jobs that the relay has ended itself.", ["downstream"], registry=self._registry
        )
        self._registry.register(_QueueMetrics(queue))
        self._registry.register(_JobMetrics(jobs))
        self._registry.register(_OutboxMetrics(outbox))

    def answered(self, event: str, status: int, seconds: float) -> None:
        """Count a webhook. `event` must be of a fixed set: each value is a time series."""
        self._webhooks.labels(event, str(status)).inc()
        self._answer.observe(seconds)

    def tried(self, end: Settlement[Claim]) -> None:
        """Count the end of a try."""
        self._tries.labels(end.claim.repository, _end(end)).inc()
        if end.sent:
            self._age.labels(end.claim.repository).observe(max(0.0, end.at - end.claim.received_at))

    def forwarded(self, end: Settlement[ForwardClaim]) -> None:
        """Count the end of a try to forward."""
        self._forwards.labels(end.claim.destination, _end(end)).inc()

    def called_back(self, end: str) -> None:
        """Count a callback. `end` must be of a fixed set, as `event` above."""
        self._callbacks.labels(end).inc()

    def stepped(self, taken: Taken) -> None:
        """Count the times of a job."""
        row = taken.row
        if taken.step == "in_progress" and row.queue_s is not None:
            self._queue_s.labels(row.repository).observe(row.queue_s)
        if taken.step == "completed" and row.execution_s is not None:
            self._execution_s.labels(row.repository).observe(row.execution_s)

    def lost(self, repository: str) -> None:
        """Count a job that the relay has ended itself."""
        self._lost.labels(repository).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


def _end(end: Settlement[Any]) -> str:
    return "sent" if end.sent else "dead" if end.due_at is None else "failed" if end.failed else "limited"


class _QueueMetrics(Collector):
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield from ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        dispatches = GaugeMetricFamily(
            "accel_ci_relay_dispatches", "Dispatches that were not sent.", labels=["downstream", "state"]
        )
        oldest = GaugeMetricFamily(
            "accel_ci_relay_oldest_wait_seconds", "Wait of the oldest dispatch.", labels=["downstream"]
        )
        paused = GaugeMetricFamily("accel_ci_relay_paused_seconds", "Rest of the pause.", labels=["downstream"])
        for one in self._queue.status(time.time(), count_sent=False):
            paused.add_metric(["GitHub" if one.repository == GITHUB else one.repository], one.paused_s)
            if one.repository != GITHUB:
                for state, value in (("waiting", one.waiting), ("dead", one.dead)):
                    dispatches.add_metric([one.repository, state], value)
                oldest.add_metric([one.repository], one.oldest_wait_s)
        waiting = GaugeMetricFamily("accel_ci_relay_deliveries_waiting", "Deliveries without their dispatches yet.")
        waiting.add_metric([], self._queue.unexpanded())
        yield from (dispatches, oldest, paused, waiting)


class _OutboxMetrics(Collector):
    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield from ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        forwards = GaugeMetricFamily(
            "accel_ci_relay_forwards", "Forwards that were not sent.", labels=["destination", "state"]
        )
        oldest = GaugeMetricFamily(
            "accel_ci_relay_oldest_forward_seconds", "Wait of the oldest forward.", labels=["destination"]
        )
        for one in self._outbox.status(time.time(), count_sent=False):
            for state, value in (("waiting", one.waiting), ("dead", one.dead)):
                forwards.add_metric([one.destination, state], value)
            oldest.add_metric([one.destination], one.oldest_wait_s)
        yield from (forwards, oldest)


class _JobMetrics(Collector):
    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield from ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        running = GaugeMetricFamily("accel_ci_relay_jobs_in_progress", "Jobs in progress.", labels=["downstream"])
        for one in self._jobs.status():
            running.add_metric([one.repository], one.in_progress)
        yield running
