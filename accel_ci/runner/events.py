"""A worker's events: one JSON line each, written by the supervisor alone and read by the driver (`accel_ci.rounds`)."""

from __future__ import annotations

import errno
import json
import os
from datetime import datetime, timezone
from pathlib import Path


def now() -> str:
    """Return the time in UTC, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat()


class EventLog:
    """An append-only file of events; every line has `event` and `at`."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises `FileExistsError` when a worker of this name has been here before."""
        self._file = path.open("xb", buffering=0)

    def write(self, event: str, **fields: object) -> None:
        """Append one event in a single write, so that only a crash of the machine can tear a line.

        Raises `OSError` when the disk is full; no part of the line is left then.
        """
        line = json.dumps({"event": event, "at": now(), **fields}, separators=(",", ":")).encode("ascii") + b"\n"
        before = self._file.tell()
        if self._file.write(line) != len(line):
            self._file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)
