"""Copy what a program prints or writes into a pipe to a file, without its secrets, which are never on a disk."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from accel_ci.redaction import Redactor


class RedactedPipe:
    """Copies the lines from a pipe into a file without secrets, which are never on a disk."""

    def __init__(self, readable: int, writable: int, copy: BinaryIO, redactor: Redactor, left_out: Sequence[bytes]) -> None:
        """Lines that begin with one of `left_out` are not copied."""
        self.writable = writable
        self._readable, self._copy, self._redactor, self._left_out = readable, copy, redactor, tuple(left_out)
        self._rest = b""
        os.set_blocking(readable, False)

    @classmethod
    @contextmanager
    def named(cls, pipe: Path, copy: Path, redactor: Redactor, left_out: Sequence[str]) -> Iterator[RedactedPipe]:
        """Make a named pipe for JSON lines, without those of the kinds `left_out`; it is removed after the context."""
        os.mkfifo(pipe, 0o600)
        end = os.open(pipe, os.O_RDWR)  # both ends: without a writer, reading would report its end
        kinds = [f'{{"id":{{"{kind}"'.encode() for kind in left_out]
        try:
            with copy.open("wb") as file, closing(cls(end, end, file, redactor, kinds)) as both:
                yield both
        finally:
            pipe.unlink()

    @classmethod
    @contextmanager
    def unnamed(cls, copy: Path, redactor: Redactor) -> Iterator[RedactedPipe]:
        """Make a pipe for a process's output, which is appended to the file."""
        with copy.open("ab") as file, closing(cls(*os.pipe(), file, redactor, ())) as both:
            yield both

    def pass_on(self, wait_s: float) -> bool:
        """Copy what can be read within `wait_s` seconds. Return whether there was anything."""
        if not select.select([self._readable], [], [], wait_s)[0]:
            return False
        with suppress(BlockingIOError):
            while added := os.read(self._readable, 1 << 20):
                *lines, self._rest = (self._rest + added).split(b"\n")
                kept = (line for line in lines if not line.startswith(self._left_out))
                self._copy.writelines(self._redactor.content(line) + b"\n" for line in kept)
        self._copy.flush()
        return True

    def close(self) -> None:
        """Copy the rest, including a last line without a line break, and close both ends."""
        try:
            while self.pass_on(0):
                pass
            if self._rest and not self._rest.startswith(self._left_out):
                self._copy.write(self._redactor.content(self._rest))
        finally:
            for end in {self._readable, self.writable}:
                os.close(end)
