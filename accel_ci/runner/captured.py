"""The files in which pytest captures what tests print: bounded, and readable after a crash.

pytest keeps the output of the running phase of a test in a temporary file without a name. The worker opens it as well, so
that the last output is not lost with the child, and cuts it while it grows. Output that is not captured goes through the
child's standard output (`outcomes.OutputTail`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

_KEPT_BYTES = 1 << 20
_LIMIT_BYTES = 8 << 20


def capture_files(config: Any) -> list[int]:
    """Return the descriptors of pytest's capture files, and have all their writers append; empty where there are none."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        capture = config.pluginmanager.getplugin("capturemanager")._global_capturing
        found = [stream.tmpfile.fileno() for stream in (capture.out, capture.err) if stream is not None]
        for descriptor in found:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
        return found
    return []


def cut_to_end(descriptor: int, limit_bytes: int = _KEPT_BYTES) -> None:
    """Keep only the last 1 MB of a file that is longer than the limit."""
    with contextlib.suppress(OSError):
        size = os.fstat(descriptor).st_size
        if size > limit_bytes:
            end = os.pread(descriptor, _KEPT_BYTES, size - _KEPT_BYTES)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, end)


class CapturedOutput:
    """The worker's view of the capture files of a child."""

    def __init__(self) -> None:
        self._files: list[IO[bytes]] = []
        self._state: list[int] = []

    def open(self, names: Iterable[str]) -> None:
        """Open the files; those that cannot be opened are left out."""
        for name in names:
            with contextlib.suppress(OSError):
                file = os.fdopen(os.open(name, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK), "r+b", buffering=0)
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    self._files.append(file)
                else:
                    file.close()

    def has_grown(self) -> bool:
        """Return whether the files have changed since the last call; cut those that are over 8 MB."""
        before, self._state = self._state, [os.fstat(file.fileno()).st_mtime_ns for file in self._files]
        for file in self._files:
            cut_to_end(file.fileno(), _LIMIT_BYTES)
        return self._state != before

    def close(self) -> bytes:
        """Close the files; return the ends of their contents."""
        ends = []
        for file in self._files:
            with contextlib.suppress(OSError):
                size = os.fstat(file.fileno()).st_size
                ends.append(os.pread(file.fileno(), _KEPT_BYTES, max(0, size - _KEPT_BYTES)))
            file.close()
        self._files = []
        return b"\n".join(filter(None, ends))


def names_of(descriptors: Iterable[int]) -> list[str]:
    """Return names by which another process of the user can open this process's files."""
    return [str(Path(f"/proc/{os.getpid()}/fd", str(descriptor))) for descriptor in descriptors]
