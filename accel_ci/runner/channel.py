"""A worker's connection to its driver: events go out, claims and news are asked for, as lines of JSON.

The driver has made the connection for this worker alone, so it says who the worker is, and no test can speak for it: tests
do not inherit the descriptor, and the process that has it hides its memory (`ending.hide_memory`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

ASK = b'{"ask":'  # the beginning of a line that wants an answer; all others are events
LONGEST_LINE = 1 << 20  # bytes of a line to the driver, which refuses a longer one
_READ_BYTES = 1 << 16


class Channel:
    """The worker's end. When the driver has ended, the first use raises `SystemExit`, and later events go nowhere."""

    def __init__(self, place: str) -> None:
        """Use the inherited descriptor of that number, or connect to the socket at that path. Raises `OSError`."""
        self._answers = b""
        self._is_open = True
        if place.isdigit():
            self._socket = socket.socket(fileno=int(place))
            self._socket.set_inheritable(False)
            return
        self._socket = socket.socket(socket.AF_UNIX)
        folder = os.open(Path(place).parent, os.O_RDONLY)
        try:
            self._socket.connect(
                f"/proc/self/fd/{folder}/{Path(place).name}"
            )  # the path itself may be too long for a socket
        finally:
            os.close(folder)

    def send(self, line: bytes) -> None:
        """Send one line, whole even when SIGTERM comes meanwhile."""
        if not self._is_open:
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            self._socket.sendall(line)
        except OSError:
            self._is_open = False
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if not self._is_open:
            raise SystemExit("the driver of this worker has ended, or accepts nothing from it any more")

    def ask(self, what: str, **fields: object) -> Any:
        """Ask the driver and return its answer."""
        self.send(json.dumps({"ask": what, **fields}, separators=(",", ":")).encode("ascii") + b"\n")
        while b"\n" not in self._answers:
            part = self._socket.recv(_READ_BYTES)
            if not part:
                self._is_open = False
                raise SystemExit("the driver of this worker has ended")
            self._answers += part
        answer, _, self._answers = self._answers.partition(b"\n")
        return json.loads(answer)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
