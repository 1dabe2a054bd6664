"""Brings a growing file to the store in chunks, beside the work that makes it grow.

A chunk is an object whose name is where it begins in the file, in bytes: whoever has read so far knows the name of the next,
and a chunk that is sent again is the same object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from .signed_store import StoreError

CHUNK_BYTES = 4 << 20
"""No chunk is larger, but for a single line that is."""


def chunk_name(offset: int) -> str:
    """The name of the chunk that begins `offset` bytes into the file; names sort as offsets do."""
    return f"{offset:012d}"


class Uploader:
    """Sends a file's new complete lines every few seconds, from a thread of its own."""

    def __init__(self, path: Path, send: Callable[[int, bytes], None], every_s: float) -> None:
        """Begin; `send` brings the bytes at an offset to the store, or raises `StoreError`."""
        self.failed: StoreError | None = None
        self._path, self._send, self._every_s = path, send, every_s
        self._sent = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send what is left; waits for it as long as `send` does."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ending.wait(self._every_s):
                self._flush()
            self._flush()
        except StoreError as error:
            self.failed = error

    def _flush(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._sent)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        while data:
            end = data.rfind(b"\n", 0, CHUNK_BYTES) + 1 or data.find(b"\n") + 1
            self._send(self._sent, data[:end])
            self._sent += end
            data = data[end:]
