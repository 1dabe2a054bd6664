"""Durations as producers write them: `1.5`, `1,234.5`, `1.234,5`, `0,160`, `1:02:03.4`."""

from __future__ import annotations

import math
import re

from .characters import SPACE

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_CLOCK = re.compile(r"([0-9]+):([0-5][0-9]):([0-5][0-9](\.[0-9]+)?)")
_COMMA_GROUPS = re.compile(r"[0-9]{1,3}(,[0-9]{3})+\.[0-9]+|[0-9]{1,3}(,[0-9]{3}){2,}")
_DOT_GROUPS = re.compile(r"[0-9]{1,3}(\.[0-9]{3})+,[0-9]+")
_DECIMAL_COMMA = re.compile(r"([0-9]+),([0-9]+)")
_AMBIGUOUS = re.compile(r"[1-9][0-9]{0,2},[0-9]{3}")


def parse_duration(text: str | None) -> tuple[float | None, str | None]:
    """Seconds, or None for what is none, and a warning code if there is something to say."""
    text = (text or "").strip(SPACE)
    if not text:
        return None, "duration_missing"
    warning = None
    if _NUMBER.fullmatch(text):
        seconds = float(text)
    elif clock := _CLOCK.fullmatch(text):
        seconds = float(clock[1]) * 3600 + float(clock[2]) * 60 + float(clock[3])
    elif _COMMA_GROUPS.fullmatch(text):
        seconds = float(text.replace(",", ""))
    elif _DOT_GROUPS.fullmatch(text):
        seconds = float(text.replace(".", "").replace(",", "."))
    elif _DECIMAL_COMMA.fullmatch(text):
        seconds = float(text.replace(",", "."))
        warning = "duration_ambiguous" if _AMBIGUOUS.fullmatch(text) else None
    else:
        return None, "duration_invalid"
    if seconds < 0 or not math.isfinite(seconds):
        return None, "duration_invalid"
    return abs(seconds), warning


def duration_of(value: object) -> tuple[float | None, str | None]:
    """Seconds from a JSON value, None for what is no number, and a warning code if there is something to say."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None, None
    try:
        seconds = float(value)
    except OverflowError:
        return None, "duration_invalid"
    return (abs(seconds), None) if 0 <= seconds < math.inf else (None, "duration_invalid")
