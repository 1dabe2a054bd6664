"""Remove secrets from the output of a program on its way to the disk."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


class Redactor:
    """Removes secrets from bytes, both as they are and as JSON encodes them."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._forms = sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)

    def text(self, line: bytes) -> bytes:
        """Replace every secret by `***`."""
        for form in self._forms:
            line = line.replace(form, b"***")
        return line


def _forms(secret: str) -> set[bytes]:
    plain = json.dumps(secret, ensure_ascii=False)[1:-1]
    for_web = plain
    for letter in "<>&='":  # Bazel's JSON writer also escapes HTML's special characters
        for_web = for_web.replace(letter, f"\\u{ord(letter):04x}")
    return {form.encode() for form in (secret, plain, for_web, json.dumps(secret)[1:-1])}


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
                self._copy.writelines(self._redactor.text(line) + b"\n" for line in kept)
        self._copy.flush()
        return True

    def close(self) -> None:
        """Copy the rest, including a last line without a line break, and close both ends."""
        try:
            while self.pass_on(0):
                pass
            if self._rest and not self._rest.startswith(self._left_out):
                self._copy.write(self._redactor.text(self._rest))
        finally:
            for end in {self._readable, self.writable}:
                os.close(end)
