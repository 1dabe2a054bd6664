"""The health of a worker's card: when to probe it, and the events of probes."""

from __future__ import annotations

from pathlib import Path

from .events import EventLog
from .probe import Health, Probe
from .round_folder import RoundPlan

_FIRST_PROBE_AFTER = 3


class UnhealthyCardError(Exception):
    """The probe found the card unhealthy."""


class CardHealth:
    """Probes a card: alone on it, or beside the tests after several failures."""

    def __init__(self, plan: RoundPlan, log: EventLog, output: Path) -> None:
        """Probe nothing yet. Probes print into the file `output`."""
        self._plan, self._log, self._output = plan, log, output
        self._failures = 0  # since the last probe
        self._probe_after = _FIRST_PROBE_AFTER
        self._background: Probe | None = None

    def check(self) -> None:
        """Probe the card while nothing else runs on it. Raises `UnhealthyCardError`."""
        health = self._start().wait()
        self._record(health)
        if not health.healthy:
            raise UnhealthyCardError(health.reason)

    def count_failure(self) -> None:
        """Count a failed test, and start a probe beside the tests when there have been enough."""
        self._failures += 1
        if self._plan.probe and self._background is None and self._failures >= self._probe_after:
            self._background = self._start()

    def is_in_doubt(self) -> bool:
        """Whether a probe beside the tests has just failed; that may be only because the tests hold the card."""
        health = self._background.result() if self._background is not None else None
        if health is None:
            return False
        self._background = None
        if health.healthy:
            self._record(health)
            self._probe_after *= 2
        return not health.healthy

    def stop_background_probe(self) -> None:
        """End the probe beside the tests, if there is one."""
        if self._background is not None:
            self._background.end()
            self._background = None

    def _start(self) -> Probe:
        return Probe(self._plan.probe, self._plan.limits.probe_timeout_s, self._output)

    def _record(self, health: Health) -> None:
        self._failures = 0
        self._log.write("probe", healthy=health.healthy, reason=health.reason, seconds=health.seconds)
