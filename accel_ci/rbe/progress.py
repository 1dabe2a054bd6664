"""Show progress from the build events that Bazel is writing: targets built, tests passed, failed and cached.

Results are not read here, but in `accel_ci.reports`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from accel_ci.progress import Step
from accel_ci.reports.bep import is_cached
from accel_ci.reports.json_lines import object_of

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
            event = object_of(json.loads(line))
        except (ValueError, RecursionError):
            return
        kind, its_id = next(iter(object_of(event, "id").items()), ("", None))
        label = str(object_of(its_id).get("label"))
        if kind == "targetConfigured" and "testSize" in object_of(event, "configured"):
            self.tests.add(label)
            self.step.total(len(self.tests))
        elif kind == "targetCompleted":
            built = object_of(event, "completed").get("success") is True
            self._count("built" if built else "failed to build")
            if not built and label in self.tests:
                self._finished(label)
        elif kind == "testResult":
            if is_cached(object_of(event, "testResult")):
                self._count("cached")
        elif kind == "testSummary":
            self._count(str(object_of(event, "testSummary").get("overallStatus", "NO_STATUS")).lower())
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
