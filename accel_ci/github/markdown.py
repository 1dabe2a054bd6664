"""Hostile text for GitHub's Markdown: nothing in it is interpreted, nobody is mentioned, and the limits are kept.

Secrets are redacted first: behind character references, nobody would find them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from accel_ci.redaction import redact

LONGEST_TEXT = 65_535
"""Characters that GitHub takes for a comment, or a summary; bytes here, so that both ways of counting hold."""

_LONGEST_ADDRESS = 2000
_SYNTAX = re.compile(r"[!\"#$&'*.:<>@\[\\\]^_`{|}~]")
"""The characters to which Markdown, GitHub's additions or HTML may give a meaning inside a line."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


def one_line(text: str) -> str:
    """Return one line, without control characters and those that turn the direction of text. It is not escaped."""
    return _CONTROL.sub(" ", text).strip()


def block(text: str) -> str:
    """Return text for the inside of `<pre>`, in which Markdown is not interpreted and nobody is mentioned."""
    return "\n".join(escape(redact(one_line(line))) for line in text.splitlines())


def code(text: str) -> str:
    """Return text of one line as code, also in a cell of a table and inside HTML.

    Markdown is active in `<code>`: so what could begin some is a character reference, which begins none. An address of mail
    becomes a link after that, unless something parts it; in code, nobody is mentioned.
    """
    return f"<code>{_references(one_line(text)).replace('&#64;', '&#64;<!-- -->')}</code>"


def inert(text: str) -> str:
    """Return text of one line outside of code: nothing in it is interpreted, nobody is mentioned and nothing referred to."""
    return re.sub("&#(35|64);", "\\g<0>\u200b", _references(one_line(text)))


def _references(text: str) -> str:
    return _SYNTAX.sub(lambda found: f"&#{ord(found[0])};", redact(text))


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
