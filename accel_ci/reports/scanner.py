"""Untrusted characters with look-ahead: a buffer over chunks, and the small pieces that XML is made of.

Here belong line ends, names, whitespace, and the difference between input that is cut and input that is wrong. Tags and
documents belong to `markup.py`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

from .characters import SPACE, Characters
from .warning_codes import WarningCode

_START = (
    r":A-Z_a-z\xC0-\xD6\xD8-\xF6\xF8-\u02FF\u0370-\u037D\u037F-\u1FFF\u200C\u200D\u2070-\u218F\u2C00-\u2FEF\u3001-\uD7FF"
    r"\uF900-\uFDCF\uFDF0-\uFFFD\U00010000-\U000EFFFF"
)
_NAME = re.compile(rf"[{_START}][{_START}\-.0-9\xB7\u0300-\u036F\u203F\u2040]*")
_SPACES = re.compile(f"[{SPACE}]*")
MAX_NAME = 1 << 16  # characters


class Damage(Exception):
    """The input ends or is not well-formed at this place; see the code."""

    def __init__(self, code: WarningCode) -> None:
        super().__init__(code)
        self.code = code


class Scanner:
    """The characters of a document. A read that needs more than there are raises `Damage`."""

    def __init__(self, characters: Characters) -> None:
        self.warnings = characters.warnings
        self._characters = characters
        self._chunks = iter(characters)
        self._buffer = ""
        self._at = 0  # the place in the buffer up to which characters are consumed
        self._special = False  # the buffer may hold invalid bytes or forbidden characters
        self._line_ends = io.IncrementalNewlineDecoder(None, translate=True)

    def _more(self) -> bool:
        """Read another chunk into the buffer; False at the end of the input."""
        chunk = next(self._chunks, None)
        text = self._line_ends.decode(chunk or "", final=chunk is None)
        if chunk is None and not text:
            return False
        rest = self._buffer[self._at :]
        self._special = self._characters.special or (self._special and bool(rest))
        self._buffer, self._at = rest + text, 0
        return True

    def _more_or_cut(self) -> None:
        if not self._more():
            raise Damage("truncated")

    def _fill(self, count: int) -> None:
        """Read until the buffer has this many characters, or all that are left."""
        while len(self._buffer) - self._at < count and self._more():
            pass

    def _char(self) -> str:
        while self._at >= len(self._buffer):
            self._more_or_cut()
        return self._buffer[self._at]

    def _spaces(self) -> bool:
        """Skip whitespace; True if there was any."""
        skipped = False
        while match := _SPACES.match(self._buffer, self._at):
            skipped |= match.end() > self._at
            self._at = match.end()
            if self._at < len(self._buffer) or not self._more():
                break
        return skipped

    def _name(self) -> str:
        while True:
            match = _NAME.match(self._buffer, self._at)
            end = match.end() if match else self._at
            if end - self._at > MAX_NAME:
                raise Damage("malformed")
            if end < len(self._buffer):
                break
            self._more_or_cut()
        if match is None:
            raise Damage("malformed")
        self._at = end
        return match[0]

    def _until(self, end: str) -> Iterator[str]:
        """Yield the characters before `end` in pieces, then skip `end`."""
        while (found := self._buffer.find(end, self._at)) < 0:
            safe = len(self._buffer) - len(end) + 1
            if safe > self._at:
                piece = self._buffer[self._at : safe]
                self._at = safe
                yield piece
            self._more_or_cut()
        piece = self._buffer[self._at : found]
        self._at = found + len(end)
        yield piece

    def _expect(self, expected: str) -> None:
        self._fill(len(expected))
        there = self._buffer[self._at : self._at + len(expected)]
        if there != expected:
            raise Damage("truncated" if expected.startswith(there) else "malformed")
        self._at += len(expected)
