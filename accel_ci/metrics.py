"""Metrics of the newest build of each variant and trigger, for Prometheus: from the manifests alone.

What Dagster knows, such as the queue of runs, is in `accel_ci.defs.metrics`; which numbers a build has, in
`accel_ci.ledger.status`. Names and units follow Prometheus' own rules (prometheus.io/docs/practices/naming).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from accel_ci.ledger.status import BuildStatus, read_status
from accel_ci.model import VERDICTS, DeviceTestResults
from accel_ci.pipelines import DEVICE_TEST_RESULTS
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace

_OF_BUILD = ("variant", "trigger")
_LOOKED_AT = 30
"""So many revisions are looked at, the newest first; one who has not been built since is not shown."""


class BuildMetrics(Collector):
    """Reads the manifests whenever it is asked."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Make the metrics."""
        green = _gauge("accel_ci_build_green", "1 if the newest build that has ended passed, else 0.")
        ended = _gauge("accel_ci_build_ended_timestamp_seconds", "When the newest build ended.")
        tests = _gauge("accel_ci_build_tests", "Tests of the newest build by verdict.", "verdict")
        infra = _gauge("accel_ci_build_infra_attempts", "Attempts that the infrastructure lost in the newest build.")
        cards = _gauge("accel_ci_build_cards", "Cards of the newest build.", "state")
        seconds = _gauge("accel_ci_build_seconds", "Where the time of the newest build went.", "part")
        card_seconds = _gauge("accel_ci_build_card_seconds", "What all cards of the newest build did meanwhile.", "state")
        ratio = _gauge("accel_ci_build_makespan_ratio", "Makespan without set-up, over the bound that no schedule can beat.")
        manifests = self._workspace.manifests.at_one_moment()
        for trigger, status, queue_s, ended_at in newest_builds(manifests):
            labels = [status.build.variant, trigger]
            green.add_metric(labels, float(status.passed))
            infra.add_metric(labels, status.infra_attempts)
            if ended_at is not None:
                ended.add_metric(labels, ended_at.timestamp())
            for verdict in VERDICTS:
                tests.add_metric([*labels, verdict], status.counts.get(verdict, 0))
            cards.add_metric([*labels, "used"], len(status.cards))
            cards.add_metric([*labels, "unhealthy"], len(status.unhealthy_cards))
            parts = {
                "wall": status.wall_s, "work": status.work_s, "overhead": status.overhead_s, "queue": queue_s,
                "makespan": status.makespan_s, "lower_bound": status.lower_bound_s, "setup": status.setup_s,
            }  # fmt: skip
            for part, value in parts.items():
                if value is not None:
                    seconds.add_metric([*labels, part], value)
            if status.ratio is not None:
                ratio.add_metric(labels, status.ratio)
            if (tested := manifests.find(DEVICE_TEST_RESULTS, status.build, DeviceTestResults)) is not None:
                for state, value in _card_seconds(tested).items():
                    card_seconds.add_metric([*labels, state], value)
        yield from (green, ended, tests, infra, cards, seconds, card_seconds, ratio)


def _card_seconds(tested: DeviceTestResults) -> dict[str, float]:
    """Return how the time of all cards from the first test to the last was spent: with tests, with set-up, or idle."""
    busy, setup = sum(card.busy_s for card in tested.cards), sum(card.setup_s for card in tested.cards)
    return {"busy": busy, "setup": setup, "idle": max(0.0, tested.makespan_s * len(tested.cards) - busy - setup)}


def newest_builds(manifests: ManifestStore) -> Iterator[tuple[str, BuildStatus, float | None, datetime | None]]:
    """Yield the newest build of each variant and trigger that has a ledger, with its trigger.

    The seconds that its runs waited in the queue, and the time of its end, are None where they are not known.
    """
    seen: set[tuple[str, str]] = set()
    for revision in manifests.revisions()[:_LOOKED_AT]:
        for build in manifests.builds_of(revision.key) if revision.trigger is not None else ():
            runs = manifests.last_runs(build).values()
            if (build.variant, str(revision.trigger)) in seen or not any(run.reported for run in runs):
                continue
            seen.add((build.variant, str(revision.trigger)))
            waits = [(run.started_at - run.asked_at).total_seconds() for run in runs if run.started_at is not None]
            ends = [run.ended_at for run in runs if run.ended_at is not None]
            yield str(revision.trigger), read_status(manifests, build), max(waits, default=None), max(ends, default=None)


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, labels=[*_OF_BUILD, *labels])
