"""Reports of waits that take more than 5 s; by default on standard error, which is the worker's log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_LONG_S = 5.0


def print_line(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(text + "\n")


class LongWait:
    """One wait, which is reported once when it has taken 5 s."""

    def __init__(self, what: str, report: Callable[[str], object] = print_line) -> None:
        """Start the clock. `what` completes the sentence "waiting for …"."""
        self._what, self._report = what, report
        self._began = time.monotonic()
        self._reported = False

    def still_waiting(self) -> None:
        """Report the wait if it has just become long."""
        if not self._reported and time.monotonic() - self._began > _LONG_S:
            self._reported = True
            self._report(f"waiting for {self._what}")
