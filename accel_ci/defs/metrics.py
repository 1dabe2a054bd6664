"""Metrics that Dagster knows, for Prometheus: the queue of runs, and whether schedules and sensors tick."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import time
from typing import Any

import dagster as dg
from prometheus_client import CollectorRegistry, generate_latest, start_http_server, write_to_textfile
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from accel_ci.config.settings import Project
from accel_ci.defs.instance import UNFINISHED, open_instance
from accel_ci.defs.location import runs_of
from accel_ci.defs.run_tags import TRIGGER_TAG
from accel_ci.metrics import BuildMetrics
from accel_ci.workspace import Workspace


class InstanceMetrics(Collector):
    """Asks the instance whenever it is asked."""

    def __init__(self, instance: dg.DagsterInstance, location: str | None) -> None:
        """Measure one location's part of the instance, or all of it."""
        self._instance, self._location = instance, location

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Make the metrics."""
        now = time()
        records = list(runs_of(self._instance, self._location, statuses=UNFINISHED))
        runs = GaugeMetricFamily("accel_ci_runs", "Runs that have not ended.", labels=["status", "trigger"])
        counts = Counter(
            (one.dagster_run.status.value.lower(), one.dagster_run.tags.get(TRIGGER_TAG, "")) for one in records
        )
        for labels, count in sorted(counts.items()):
            runs.add_metric(labels, count)
        waiting = [one.create_timestamp.timestamp() for one in records if one.start_time is None]
        wait = GaugeMetricFamily("accel_ci_queue_oldest_seconds", "How long the oldest run that has not started has waited.")
        wait.add_metric([], now - min(waiting, default=now))
        yield from (runs, wait, self._ticks(now))

    def _ticks(self, now: float) -> GaugeMetricFamily:
        age = GaugeMetricFamily(
            "accel_ci_tick_age_seconds",
            "Since the last tick of each running schedule and sensor.",
            labels=["name", "status"],
        )
        states: Sequence[Any] = self._instance.all_instigator_state()
        for state in states:
            place = state.origin.repository_origin.code_location_origin.location_name
            if state.is_running and self._location in (None, place):
                for tick in self._instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1):
                    age.add_metric([state.instigator_name, tick.status.value.lower()], now - tick.timestamp)
        return age


def metrics_text(project: Project) -> str:
    """Return all metrics, as of now, in Prometheus' text format."""
    with open_instance(project) as instance:
        return generate_latest(_registry(project, instance)).decode()


def write_metrics(project: Project, file: Path) -> None:
    """Write all metrics into a file, whole or not at all, for the textfile collector of Prometheus' node exporter."""
    with open_instance(project) as instance:
        write_to_textfile(str(file), _registry(project, instance))


def serve_metrics(project: Project, host: str, port: int, say: Callable[[str], None]) -> None:
    """Answer Prometheus at an address, which `say` gets, until the process ends. Port 0 stands for a free one."""
    with open_instance(project) as instance:
        server, thread = start_http_server(port, host, _registry(project, instance))
        say(f"http://{host}:{server.server_port}/metrics")
        thread.join()


def _registry(project: Project, instance: dg.DagsterInstance) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(BuildMetrics(Workspace(project)))
    registry.register(InstanceMetrics(instance, project.settings.location))
    return registry
