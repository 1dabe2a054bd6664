"""Show progress from the build events that Bazel is writing: targets built, tests passed, failed and cached.

Only what shows a person that work goes on is read here. `accel_ci.reports` reads the results.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel_ci.progress import Step

_READ_BYTES = 1 << 22


@dataclass
class BuildProgress:
    """Follow a growing file of events, one JSON object per line; add its tests to `tests`, those of earlier files."""

    events: Path
    step: Step
    tests: set[str]
    done: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    _place: int = 0
    _rest: bytes = b""

    def look(self) -> None:
        """Read new events and show the progress."""
        if not self.events.is_file():
            return
        with self.events.open("rb") as stream:
            stream.seek(self._place)
            while added := stream.read(_READ_BYTES):
                self._place += len(added)
                *lines, self._rest = (self._rest + added).split(b"\n")
                for line in lines:
                    self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            kind, its_id = next(iter(event["id"].items()))
        except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
            return
        if not isinstance(its_id, dict) or not isinstance(event, dict):
            return
        label = str(its_id.get("label"))
        if kind == "targetConfigured" and "testSize" in _object(event.get("configured")):
            self.tests.add(label)
            self.step.total(len(self.tests))
        elif kind == "targetCompleted":
            built = _object(event.get("completed")).get("success") is True
            self._count("built" if built else "failed to build")
            if not built and label in self.tests:
                self._finished(label)
        elif kind == "testResult":
            result = _object(event.get("testResult"))
            if True in (result.get("cachedLocally"), _object(result.get("executionInfo")).get("cachedRemotely")):
                self._count("cached")
        elif kind == "testSummary":
            self._count(str(_object(event.get("testSummary")).get("overallStatus", "NO_STATUS")).lower())
            self._finished(label)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self.step.note(self.line)

    def _finished(self, label: str) -> None:
        if label not in self.done:
            self.done.add(label)
            self.step.advance(self.line)

    @property
    def line(self) -> str:
        """The counts so far."""
        return ", ".join(f"{count} {what}" for what, count in self.counts.items())


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
