"""The tries of one test in one session, from the reports of pytest and of plug-ins that run a failed test again.

pytest-rerunfailures, pytest-retry and flaky run a test until it passes. Each of their tries is an attempt, so that a test
that passes at its second try is seen to be flaky. pytest-retry logs only the first and the last of several.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_OUTCOMES = ("passed", "failed", "skipped")


class Tries:
    """Collects the reports of the running test. Copies are kept, because plug-ins change a report and log it again."""

    def __init__(self) -> None:
        self._tries: list[dict[int, Any]] = [{}]  # copies by the identity of their report
        self._repeated = False  # a plug-in has logged the current try as one that it repeats
        self._alive: list[Any] = []  # the reports themselves, so that no two have one identity
        self._phases = 0

    @contextmanager
    def phase(self) -> Iterator[None]:
        """Have reports that are made within the block ignored unless they are logged: they are of parts of the test."""
        self._phases += 1
        try:
            yield
        finally:
            self._phases -= 1

    def made(self, report: Any) -> None:
        """Note the report of a phase, which a plug-in may keep to itself to try again."""
        if self._phases == 0:
            self._add(report)

    def logged(self, report: Any) -> None:
        """Note a report that all plug-ins see. One with an outcome of a plug-in's own is of a failed try that it repeats."""
        if report.outcome in _OUTCOMES:
            self._add(report)
            return
        if id(report) not in self._tries[-1]:
            self._add(report)
            self._tries[-1][id(report)].outcome = "failed"
        self._repeated = True

    def _add(self, report: Any) -> None:
        current = self._tries[-1]
        known = current.get(id(report))
        begins = report.when == "setup" if known is None else self._repeated and known.when == "call"
        if current and begins:
            self._repeated = False
            current = {}
            self._tries.append(current)
        current[id(report)] = copy.copy(report)
        self._alive.append(report)

    def end(self) -> list[list[Any]]:
        """Return the reports of each try, in order."""
        return [list(each.values()) for each in self._tries]
