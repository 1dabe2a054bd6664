"""Waiting for other processes and services: ask again until a limit, and log every wait that takes long."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator

_LONG_S = 5.0
_REMIND_S = 60.0


class WaitLog:
    """Logs one wait: after 5 s, and every minute from then on."""

    def __init__(self, logger: logging.Logger, what: str) -> None:
        """Start the clock. `what` completes the sentence "waiting for …"."""
        self._logger, self._what = logger, what
        self._began = time.monotonic()
        self._next_s = _LONG_S

    def seconds(self) -> float:
        """The time since the wait began."""
        return time.monotonic() - self._began

    def still_waiting(self, detail: str = "") -> None:
        """Log the wait if it is time to; `detail` is its current reason."""
        if self.seconds() >= self._next_s:
            self._next_s = self.seconds() + _REMIND_S
            self._logger.info("waiting for %s%s (%.0f s so far)", self._what, detail and f": {detail}", self.seconds())


def poll(logger: logging.Logger, what: str, every_s: float, limit_s: float = math.inf) -> Iterator[None]:
    """Yield at once, then every `every_s` seconds until `limit_s` have passed; a long wait is logged."""
    wait = WaitLog(logger, what)
    while True:
        yield
        if wait.seconds() > limit_s:
            return
        wait.still_waiting()
        time.sleep(every_s)
