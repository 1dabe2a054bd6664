"""Lines in the worker's log, its standard error, about waits of more than 5 s."""

from __future__ import annotations

import sys
import time

_LONG_S = 5.0


class LongWait:
    """One wait, which is reported once when it has taken 5 s."""

    def __init__(self, what: str) -> None:
        """Start the clock. `what` completes the sentence "waiting for …"."""
        self._what = what
        self._began = time.monotonic()
        self._reported = False

    def still_waiting(self) -> None:
        """Report the wait if it has just become long."""
        if not self._reported and time.monotonic() - self._began > _LONG_S:
            self._reported = True
            sys.stderr.write(f"waiting for {self._what}\n")
