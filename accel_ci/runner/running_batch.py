"""The batch that a worker runs, and the events of its tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .events import EventLog


class RunningBatch:
    """A batch of one suite; `open` are its tests without an attempt, in the order of the plan."""

    def __init__(self, suite: str, tests: Iterable[str], log: EventLog) -> None:
        """No test has begun."""
        self.open = dict.fromkeys(tests)
        self._suite, self._log = suite, log

    def start(self, test: str) -> None:
        """Record that a test has begun."""
        self._log.write("started", suite=self._suite, test=test)

    def attempt(self, test: str, outcome: str, details: Mapping[str, object]) -> None:
        """Record the one attempt of a test; details that are None are left out."""
        self.open.pop(test, None)
        known = {name: value for name, value in details.items() if value is not None}
        self._log.write("attempt", suite=self._suite, test=test, outcome=outcome, **known)
