"""Log waits that take more than 5 s; in a worker, which sets up no logging, these lines go to standard error."""

from __future__ import annotations

import logging
import time

_LOG = logging.getLogger(__name__)
_LONG_S = 5.0


class LongWait:
    """One wait, which is logged once when it has taken 5 s."""

    def __init__(self, what: str) -> None:
        """Start the clock. `what` completes the sentence "waiting for …"."""
        self._what = what
        self._log_at = time.monotonic() + _LONG_S

    def still_waiting(self) -> None:
        """Log the wait if it has just become long."""
        if time.monotonic() > self._log_at:
            self._log_at = float("inf")
            _LOG.warning("waiting for %s", self._what)
