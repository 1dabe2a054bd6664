"""JSON lines as objects, from untrusted input, with bounded memory.

Here belongs what is true of every format with one object per line: torn, bad and long lines, forbidden characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .characters import INVALID, Characters
from .report import ReadLimits
from .text import FORBIDDEN
from .warning_codes import WarningCode

Object = dict[str, Any]

_SUSPECT = re.compile(r"\\(?:u(?:00[01]|[dD][89a-fA-F]|[fF]{3}[eEfF])|[bf])")
_TOKEN = re.compile(r'[^"\\]+|"|\\(?:u[0-9a-fA-F]{4}|[^u]|u)', re.DOTALL)
_OPEN_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")


def object_of(value: object, *keys: str) -> Object:
    """The object below a value at a path of keys; empty if it is missing or not an object."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def objects_of(value: object) -> list[Object]:
    """The items of a list as objects; empty for another value."""
    return list(map(object_of, value)) if isinstance(value, list) else []


def read_objects(characters: Characters, limits: ReadLimits) -> Iterator[Object]:
    """The objects of a file; other lines are skipped with a warning."""
    warnings = characters.warnings
    for line, whole in _lines(characters, limits):
        special = characters.had_special
        if special and INVALID in line:
            warnings.add("invalid_encoding")
            line = line.replace(INVALID, "\ufffd")
        try:
            value = json.loads(line, strict=False)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            if (special or _SUSPECT.search(line)) and "invalid_char" not in warnings and _has_forbidden(value):
                warnings.add("invalid_char")
            yield value
        elif line.strip(" \t\r"):
            warnings.add("bad_json_line" if whole else "truncated")


def _lines(characters: Characters, limits: ReadLimits) -> Iterator[tuple[str, bool]]:
    """Lines, each with True if a line feed ends it; the texts of long lines are cut."""
    line = _Line(limits, characters.warnings)
    for chunk in characters:
        first, *others = chunk.split("\n")
        line.add(first)
        for other in others:
            if (text := line.text()) is not None:
                yield text, True
            line = _Line(limits, characters.warnings)
            line.add(other)
    if text := line.text():
        yield text, False


class _Line:
    """A line as its pieces come in. Once it is long, its strings are cut at the limit while it grows."""

    def __init__(self, limits: ReadLimits, warnings: set[WarningCode]) -> None:
        self._limits, self._warnings = limits, warnings
        self._pieces: list[str] = []
        self._size = 0
        self._long = False
        self._rest = ""  # an escape that the end of a piece cut
        self._string: int | None = None  # characters so far of the string that is open

    def add(self, piece: str) -> None:
        """Add characters, without line feeds."""
        if not self._long and self._size + len(piece) > self._limits.text:
            piece = "".join([*self._pieces, piece])
            self._pieces, self._size, self._long = [], 0, True
        if self._long:
            self._shorten(piece)
        else:
            self._pieces.append(piece)
            self._size += len(piece)

    def text(self) -> str | None:
        """The line, at its end; None if it was too long."""
        if self._size <= self._limits.line:
            return "".join(self._pieces) + self._rest
        self._warnings.add("x_line_too_long")
        return None

    def _shorten(self, piece: str) -> None:
        piece = self._rest + piece
        cut = match.start() if (match := _OPEN_ESCAPE.search(piece, max(0, len(piece) - 6))) else len(piece)
        piece, self._rest = piece[:cut], piece[cut:]
        if self._size > self._limits.line:
            return
        for match in _TOKEN.finditer(piece):
            token = match[0]
            if token == '"':  # noqa: S105
                self._string = 0 if self._string is None else None
            elif self._string is not None:
                room = self._limits.text - self._string
                self._string += len(token)
                if self._string > self._limits.text:
                    self._warnings.add("output_truncated")
                    if token[0] == "\\":
                        if _SUSPECT.match(token) and token[2:3] not in "dD":
                            self._warnings.add("invalid_char")
                        continue
                    if room <= 0:
                        continue
                    token = token[:room]
            self._pieces.append(token)
            self._size += len(token)


def _has_forbidden(value: object) -> bool:
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, str):
            if FORBIDDEN.search(value):
                return True
        elif isinstance(value, dict):
            values += value
            values += value.values()
        elif isinstance(value, list):
            values += value
    return False
