"""A worker's events: one JSON line each, written by the supervisor alone and read by the driver (`accel_ci.rounds`)."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path


def now() -> str:
    """Return the time in UTC, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat()


def line_of(event: str, **fields: object) -> bytes:
    """Return the line of one event, at this time."""
    return json.dumps({"event": event, "at": now(), **fields}, separators=(",", ":")).encode("ascii") + b"\n"


class EventLog:
    """A worker's record of events; `append` takes each line to where it is kept."""

    def __init__(self, append: Callable[[bytes], None]) -> None:
        self._append = append

    def write(self, event: str, **fields: object) -> None:
        """Record one event."""
        self._append(line_of(event, **fields))


class EventFile:
    """An append-only file of events; every line has `event` and `at`."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises `FileExistsError` when a worker of this name has been here before."""
        self._path = path
        self._file = path.open("x+b", buffering=0)

    def append(self, lines: bytes) -> None:
        """Append whole lines in a single write, so that only a crash of the machine can tear one.

        A file that a test has deleted is made again, with all that was in it. Raises `OSError` when the disk is full; no
        part of the lines is left then.
        """
        if os.fstat(self._file.fileno()).st_nlink == 0:
            self._make_again()
        before = self._file.tell()
        if self._file.write(lines) != len(lines):
            self._file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _make_again(self) -> None:
        with self._file as deleted:
            deleted.seek(0)
            content = deleted.read()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part = self._path.with_name(f"{self._path.name}.part")
            part.unlink(missing_ok=True)
            with part.open("xb") as file:
                file.write(content)
            part.replace(self._path)
            self._file = self._path.open("r+b", buffering=0)
        self._file.seek(0, os.SEEK_END)
