"""Hostile text for GitHub's Markdown: nothing in it is interpreted, nobody is mentioned, and the limits are kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

LONGEST_TEXT = 65_535
"""Characters that GitHub takes for a comment, or a summary; bytes here, so that both ways of counting hold."""

_LONGEST_ADDRESS = 2000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


def one_line(text: str) -> str:
    """Return one line, without control characters and those that turn the direction of text. It is not escaped."""
    return _CONTROL.sub(" ", text).strip()


def block(text: str) -> str:
    """Return text for the inside of `<pre>`, in which Markdown is not interpreted and nobody is mentioned."""
    return "\n".join(escape(one_line(line)) for line in text.splitlines())


def code(text: str) -> str:
    """Return text of one line as code, also in a cell of a table."""
    return f"<code>{escape(one_line(text)).replace('|', '&#124;')}</code>"


def web_address(text: str) -> str | None:
    """Return the address of a page; None where it is none that a browser may be sent to."""
    return text if re.fullmatch(r"https?://[!-~]+", text) and len(text) <= _LONGEST_ADDRESS else None


def fitting(lines: Sequence[str], room: int) -> tuple[list[str], int]:
    """Return the first lines that have room in so many bytes, each with its line end, and the number of the others."""
    found: list[str] = []
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        found.append(line)
    return found, len(lines) - len(found)
