"""The health of a worker's card, by a probe: a command whose exit code 0 means a healthy card."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .ending import end_group
from .events import EventLog
from .long_wait import LongWait
from .outcomes import bounded
from .round_folder import RoundPlan

_FIRST_PROBE_AFTER = 3  # failed tests until a worker probes its card beside the tests; doubled whenever that probe succeeds

_KEEPER_ENDS_S = 12.0
_OUTPUT_BYTES = 16 << 20  # the most that a probe may print
_DRIVER_CHARS = 100


class UnhealthyCardError(Exception):
    """The probe found the card unhealthy."""


class CardHealth:
    """Probes a card: alone on it, or beside the tests after several failures."""

    def __init__(self, plan: RoundPlan, log: EventLog, output: Path) -> None:
        """Have probes print into the file `output`."""
        self._plan, self._log, self._output = plan, log, output
        self._failures = 0  # since the last probe
        self._probe_after = _FIRST_PROBE_AFTER
        self._background: _Probe | None = None

    def check(self) -> None:
        """Probe the card while nothing else runs on it. Raises `UnhealthyCardError`."""
        probe, wait = self._start(), LongWait("the health probe to end")
        while (health := probe.result()) is None:
            wait.still_waiting()
            time.sleep(0.01)
        self._record(health)
        if not health.healthy:
            raise UnhealthyCardError(health.reason)

    def count_failure(self) -> None:
        """Count a failed test, and start a probe beside the tests when there have been enough."""
        self._failures += 1
        if self._plan.probe and self._background is None and self._failures >= self._probe_after:
            self._background = self._start()

    def is_in_doubt(self) -> bool:
        """Return True if a probe beside the tests has just failed; perhaps only because the tests hold the card."""
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

    def _start(self) -> _Probe:
        return _Probe(self._plan.probe, self._plan.limits.probe_timeout_s, self._output)

    def _record(self, health: _Health) -> None:
        self._failures = 0
        told = {"driver": health.driver} if health.driver is not None else {}
        self._log.write("probe", healthy=health.healthy, reason=health.reason, seconds=health.seconds, **told)


@dataclass(frozen=True)
class _Health:
    """The result of one probe, the seconds that it took, and the driver's version where it printed one."""

    healthy: bool
    reason: str | None
    seconds: float
    driver: str | None = None


class _Probe:
    """One running probe."""

    def __init__(self, argv: Sequence[str], limit_s: float, output: Path) -> None:
        """Start the command, which prints into the file `output`; `python` as its first word means this interpreter.

        A keeper runs it, and ends what it leaves behind: vendors' tools start daemons.
        """
        command = [sys.executable if argv[0] == "python" else argv[0], *argv[1:]]
        keeper = [sys.executable, sys.argv[0], "keep"]
        self._began, self._limit_s = time.monotonic(), limit_s
        output.parent.mkdir(parents=True, exist_ok=True)
        output.unlink(missing_ok=True)  # a test may have put anything there
        self._output = output.open("x+b")
        self._process: subprocess.Popen[bytes] | None = None
        try:
            if shutil.which(command[0]) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
            self._process = subprocess.Popen(
                [*keeper, *command],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._failed = f"the probe cannot be started: {error}"

    def result(self) -> _Health | None:
        """Return the result, None while the probe is running within its limit."""
        seconds = time.monotonic() - self._began
        if self._process is None:
            return _Health(False, self._failed, seconds)
        code = self._process.poll()
        flooded = os.fstat(self._output.fileno()).st_size > _OUTPUT_BYTES
        if code is None and seconds < self._limit_s and not flooded:
            return None
        self.end()
        reason, driver = self._told()
        self._output.close()
        if flooded:
            return _Health(False, f"the probe printed more than {_OUTPUT_BYTES >> 20} MiB", seconds)
        if code is None:
            return _Health(False, f"the probe did not end within {self._limit_s:g} s", seconds)
        return _Health(code == 0, reason or (None if code == 0 else f"the probe ended with {code}"), seconds, driver)

    def end(self) -> None:
        if self._process is not None:
            end_group(self._process, _KEEPER_ENDS_S)

    def _told(self) -> tuple[str | None, str | None]:
        """Return the reason and the driver's version that the probe printed.

        They are `reason` and `driver` in a last line of JSON; another last line is the reason.
        """
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - 8192))
        lines = self._output.read().decode("utf-8", "replace").strip().splitlines()
        if not lines:
            return None, None
        try:
            record = json.loads(lines[-1])
        except (ValueError, RecursionError):
            return bounded(lines[-1], 1024), None
        if not isinstance(record, dict):
            return bounded(str(lines[-1]), 1024) or None, None
        reason, driver = record.get("reason"), record.get("driver")
        version = " ".join(str(driver).split())[:_DRIVER_CHARS] if driver else None
        return bounded(str(reason), 1024) if reason else None, version or None
