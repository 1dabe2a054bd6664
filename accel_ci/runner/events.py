"""The worker's record: one JSON line per event, each flushed, written by the supervisor alone.

Here belong writing and the words of time and place that lines share. The driver reads the lines (`accel_ci.pool`).
"""

from __future__ import annotations

import errno
import json
import os
from datetime import datetime, timezone
from pathlib import Path


def now() -> str:
    """The time as ISO 8601 in UTC."""
    return datetime.now(timezone.utc).isoformat()


class EventLog:
    """An append-only file of events; every line has `event` and `at`."""

    def __init__(self, path: Path) -> None:
        """Create the file; raises `FileExistsError` when a worker of this name has been here before."""
        self._file = path.open("xb", buffering=0)

    def write(self, event: str, **fields: object) -> None:
        """Append one event as a single write, so that a line is torn only by the end of the machine.

        Raises `OSError` when the disk is full, and nothing of the line stays.
        """
        line = json.dumps({"event": event, "at": now(), **fields}, separators=(",", ":")).encode("ascii") + b"\n"
        before = self._file.tell()
        if self._file.write(line) != len(line):
            self._file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)
