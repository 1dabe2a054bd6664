"""Texts of reports: characters that XML forbids, identities, messages.

Here belong the rules that are the same in every format.
"""

from __future__ import annotations

import re

from .characters import SPACE

_FORBIDDEN = "\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff"
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\ufffe\uffff\ud800-\udfff]|\\(?=u\{)")

FORBIDDEN = re.compile(f"[{_FORBIDDEN}]")
"""Characters outside XML 1.0 `Char`."""


def is_blank(text: str | None) -> bool:
    """Whether there is nothing or only whitespace."""
    return text is None or not text.strip(SPACE)


def plain(text: str) -> str:
    """A text with U+FFFD for each forbidden character."""
    return FORBIDDEN.sub("\ufffd", text)


def escaped(text: str) -> str:
    r"""An identity with `\u{H}` for control characters, so that it can be told from every other and shown."""
    if text.isprintable() and "\\" not in text:
        return text
    return _ESCAPED.sub(lambda match: f"\\u{{{ord(match[0]):X}}}", text)


def first_line(text: str) -> str | None:
    """The first line that is not blank, stripped."""
    return next((bare for line in text.split("\n") if (bare := line.strip(SPACE))), None)
