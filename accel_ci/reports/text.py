"""Texts of reports: characters that XML forbids, identities, messages; the rules that all formats share."""

from __future__ import annotations

import re

from .characters import SPACE

_ESCAPED = re.compile(r"[\x00-\x1f\x7f\ufffe\uffff\ud800-\udfff]|\\(?=u\{)")
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
"""Characters outside XML 1.0 `Char`."""


def is_blank(text: str | None) -> bool:
    """True if a text is missing, empty or only whitespace."""
    return text is None or not text.strip(SPACE)


def plain(text: str) -> str:
    """Replace each forbidden character with U+FFFD."""
    return FORBIDDEN.sub("\ufffd", text)


def escaped(text: str) -> str:
    r"""Write control characters of an identity as `\u{H}`, so that it stays unique and can be shown."""
    if text.isprintable() and "\\" not in text:
        return text
    return _ESCAPED.sub(lambda match: f"\\u{{{ord(match[0]):X}}}", text)


def message_of(value: object) -> str | None:
    """A text as a message; None for a blank one and for another value."""
    return plain(value) if isinstance(value, str) and not is_blank(value) else None


def first_line(text: str) -> str | None:
    """The first line that is not blank, stripped."""
    return next((bare for line in text.split("\n") if (bare := line.strip(SPACE))), None)
