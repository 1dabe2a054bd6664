"""The health probe of a card: a command whose exit code 0 means a healthy card."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .ending import signal_group
from .long_wait import LongWait
from .outcomes import bounded


@dataclass(frozen=True)
class Health:
    """The result of one probe, and the seconds that it took."""

    healthy: bool
    reason: str | None
    seconds: float


class Probe:
    """One running probe."""

    def __init__(self, argv: Sequence[str], limit_s: float, output: Path) -> None:
        """Start the command, which prints into the file `output`; `python` as its first word means this interpreter."""
        command = [sys.executable if argv[0] == "python" else argv[0], *argv[1:]]
        self._began = time.monotonic()
        self._limit_s = limit_s
        self._output = output.open("w+b")
        self._failed: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            self._failed = f"the probe cannot be started: {error}"

    def result(self) -> Health | None:
        """Return the result, None while the probe is running within its limit."""
        seconds = time.monotonic() - self._began
        if self._process is None:
            return Health(False, self._failed, seconds)
        code = self._process.poll()
        if code is None and seconds < self._limit_s:
            return None
        self.end()
        reason = self._reason()
        self._output.close()
        if code is None:
            return Health(False, f"the probe did not end within {self._limit_s:g} s", seconds)
        return Health(code == 0, reason or (None if code == 0 else f"the probe ended with {code}"), seconds)

    def wait(self) -> Health:
        """Wait for the result."""
        wait = LongWait("the health probe to end")
        pause_s = 0.005
        while (health := self.result()) is None:
            wait.still_waiting()
            time.sleep(pause_s)
            pause_s = min(0.05, pause_s * 1.5)
        return health

    def end(self) -> None:
        """End the probe and all that it started."""
        if self._process is not None:
            signal_group(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _reason(self) -> str | None:
        """Return the reason that the probe printed: `reason` in a last line of JSON, else the last line."""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - 8192))
        lines = self._output.read().decode("utf-8", "replace").strip().splitlines()
        if not lines:
            return None
        try:
            record = json.loads(lines[-1])
        except ValueError:
            return bounded(lines[-1], 1024)
        reason = record.get("reason") if isinstance(record, dict) else lines[-1]
        return bounded(str(reason), 1024) if reason else None
