"""Bytes to characters: gzip, encodings, invalid bytes.

Here belongs everything about a file that does not depend on its format. Invalid bytes are decoded to `INVALID`, a lone
surrogate that nothing else decodes to, so that a reader warns of them only when it has read that far.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from .report import ReadLimits
from .warning_codes import WarningCode

SPACE = " \t\r\n"
INVALID = "\udfff"

_CHUNK = 1 << 18
_HEAD = 1024
_CONTROLS = bytes(set(range(0x20)) - {0x09, 0x0A, 0x0D})
# The start of the bytes, their encoding, and how much of the start is a BOM.
_STARTS = (
    (codecs.BOM_UTF8, "utf-8", 3), (codecs.BOM_UTF16_LE, "utf-16-le", 2), (codecs.BOM_UTF16_BE, "utf-16-be", 2),
    (b"<\0?\0", "utf-16-le", 0), (b"\0<\0?", "utf-16-be", 0),
)  # fmt: skip
_DECLARED = re.compile(rb"""<\?xml[ \t\r\n][^>]*?encoding[ \t\r\n]*=[ \t\r\n]*["']([^"'>]*)["']""")
_ENCODINGS = {
    "utf-8": "utf-8", "utf8": "utf-8", "us-ascii": "utf-8", "ascii": "utf-8", "iso-8859-1": "latin-1", "latin-1": "latin-1",
    "latin1": "latin-1", "windows-1252": "cp1252", "cp1252": "cp1252",
}  # fmt: skip

codecs.register_error("accel_ci.mark", lambda error: (INVALID, error.end))  # type: ignore[attr-defined]


class Characters:
    """The characters of a report, in chunks, without a BOM and leading whitespace, from chunks of bytes of any size."""

    def __init__(self, source: Iterable[bytes], limits: ReadLimits) -> None:
        self.warnings: set[WarningCode] = set()  # those so far; readers add theirs
        self.special = self.had_special = False  # the last, or any, chunk may have invalid bytes or forbidden characters
        self.leading_space = False  # whitespace was skipped at the start
        self.gzip_cut = self.gzip_fault = False  # a gzip stream ended early, or was damaged otherwise
        self._limits = limits
        self._first: str | None = None
        self._chunks = self._decoded(_Source(self._plain(_Source(source))))

    def __iter__(self) -> Iterator[str]:
        first, self._first = self._first, None
        if first:
            yield first
        yield from self._chunks

    def first(self) -> str:
        """The first character, without consuming it; empty if there is none."""
        if self._first is None:
            self._first = next(self._chunks, "")
        return self._first[:1]

    def _plain(self, source: _Source) -> Iterator[bytes]:
        """The bytes, of a gzip stream those of all its members, up to a fault if there is one."""
        if not source.peek(lambda head: len(head) >= 2).startswith(b"\x1f\x8b"):
            yield from source
            return
        member = zlib.decompressobj(31)
        read = expanded = 0
        for chunk in source:
            read += len(chunk)
            pieces = [chunk]
            while pieces:
                piece = pieces.pop()
                if member.eof:
                    piece = piece.lstrip(b"\0")  # padding, which gzip ignores as well
                    member = zlib.decompressobj(31) if piece else member
                if not piece:
                    continue
                before = member.copy()
                try:
                    plain = member.decompress(piece, _CHUNK)
                except zlib.error:
                    half = len(piece) // 2
                    if not half:
                        self.gzip_fault = True
                        return
                    member = before
                    pieces += [piece[half:], piece[:half]]
                    continue
                expanded += len(plain)
                if expanded > self._limits.expanded and expanded > read * self._limits.expansion:
                    self.warnings.add("x_expansion_limit")
                    self.gzip_cut = True
                    return
                if plain:
                    yield plain
                pieces.append(member.unused_data if member.eof else member.unconsumed_tail)
        while not member.eof and (plain := member.decompress(b"", _CHUNK)):
            yield plain
        self.gzip_cut = not member.eof

    def _decoded(self, source: _Source) -> Iterator[str]:
        head = source.peek(lambda head: len(head) >= 4)
        encoding, mark = next(((name, mark) for start, name, mark in _STARTS if head.startswith(start)), (None, 0))
        source.skip(mark)
        if encoding in (None, "utf-8"):
            self.leading_space = source.skip_space()
        if encoding is None:
            encoding = self._declared(source.peek(lambda head: b">" in head or len(head) >= _HEAD)[:_HEAD])
        decoder = codecs.getincrementaldecoder(encoding)("accel_ci.mark")
        started = False
        for data in chain(filter(None, source), [b""]):
            text = decoder.decode(data, not data)
            if not started:
                bare = text.lstrip(SPACE)
                self.leading_space |= len(bare) < len(text)
                text, started = bare, bool(bare)
            if text:
                self.special = (
                    encoding.startswith("utf-16")
                    or len(data.translate(None, _CONTROLS)) < len(data)
                    or (not text.isascii() and any(mark in text for mark in (INVALID, "\ufffe", "\uffff")))
                )
                self.had_special |= self.special
                yield text

    def _declared(self, head: bytes) -> str:
        match = _DECLARED.match(head)
        name = match[1].decode("latin-1").lower() if match else "utf-8"
        if name not in _ENCODINGS:
            self.warnings.add("encoding_mismatch" if name.startswith(("utf-16", "utf-32")) else "encoding_unknown")
        return _ENCODINGS.get(name, "utf-8")


class _Source:
    """Chunks of bytes whose start can be looked at without consuming it."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._head = b""

    def __iter__(self) -> Iterator[bytes]:
        head, self._head = self._head, b""
        if head:
            yield head
        yield from self._chunks

    def peek(self, enough: Callable[[bytes], bool]) -> bytes:
        """The start, read until it is enough or the source ends."""
        while not enough(self._head) and (chunk := next(self._chunks, None)) is not None:
            self._head += chunk
        return self._head

    def skip(self, count: int) -> None:
        self._head = self._head[count:]

    def skip_space(self) -> bool:
        """Skip whitespace; True if there was any."""
        skipped = False
        while head := self.peek(bool):
            self._head = head.lstrip(b" \t\r\n")
            skipped |= len(self._head) < len(head)
            if self._head:
                break
        return skipped
