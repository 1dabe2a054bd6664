"""Upload a growing file to the store in chunks while the worker goes on writing it.

A chunk is an object named by its offset in the file, in bytes: a reader knows the name of the next chunk from what it has
read, and a chunk that is sent again is the same object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from .signed_store import StoreError

CHUNK_BYTES = 4 << 20
"""The largest size of a chunk, unless a single line is longer."""


def chunk_name(offset: int) -> str:
    """Return the name of the chunk at an offset in bytes; names sort as offsets do."""
    return f"{offset:012d}"


class Uploader:
    """Sends the new complete lines of a file every few seconds, from a separate thread."""

    def __init__(self, path: Path, send: Callable[[int, bytes], None], every_s: float) -> None:
        """Start the thread. `send` uploads the bytes at an offset; a `StoreError` that it raises is kept in `failed`."""
        self.failed: StoreError | None = None
        self._path, self._send, self._every_s = path, send, every_s
        self._sent = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the rest of the file, waiting as long as `send` does."""
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
