"""Metrics of the relay for Prometheus: what this process has done, and the state of the queue.

Names and units follow Prometheus' own rules (prometheus.io/docs/practices/naming).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from accel_ci.relay.server.queue import GITHUB, Queue, Settlement

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600)


class RelayMetrics:
    """The counters of one server or worker."""

    def __init__(self, queue: Queue) -> None:
        """Count from zero. The state of `queue` is read whenever somebody asks."""
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
        self._registry.register(_QueueMetrics(queue))

    def answered(self, event: str, status: int, seconds: float) -> None:
        """Count a webhook. `event` must be of a fixed set: each value is a time series."""
        self._webhooks.labels(event, str(status)).inc()
        self._answer.observe(seconds)

    def tried(self, end: Settlement) -> None:
        """Count the end of a try."""
        name = "sent" if end.sent else "dead" if end.due_at is None else "failed" if end.failed else "limited"
        self._tries.labels(end.claim.repository, name).inc()
        if end.sent:
            self._age.labels(end.claim.repository).observe(max(0.0, end.at - end.claim.received_at))

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


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
