"""Durations and timestamps as producers write them: `1.5`, `1,234.5`, `1.234,5`, `0,160`, `1:02:03.4`; ISO 8601."""

from __future__ import annotations

import math
import re
import sys
from datetime import datetime, timedelta

from .characters import SPACE
from .warning_codes import WarningCode

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_CLOCK = re.compile(r"([0-9]+):([0-5][0-9]):([0-5][0-9](\.[0-9]+)?)")
_COMMA_GROUPS = re.compile(r"[0-9]{1,3}(,[0-9]{3})+\.[0-9]+|[0-9]{1,3}(,[0-9]{3}){2,}")
_DOT_GROUPS = re.compile(r"[0-9]{1,3}(\.[0-9]{3})+,[0-9]+")
_DECIMAL_COMMA = re.compile(r"([0-9]+),([0-9]+)")
_AMBIGUOUS = re.compile(r"[1-9][0-9]{0,2},[0-9]{3}")
_TIMESTAMP = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)(?:[T ](\d\d):?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?[ ]?(?:(Z)|([+-])(\d\d)(?::?(\d\d))?)?)?",
    re.ASCII | re.IGNORECASE,
)
_EPOCH = datetime(1970, 1, 1)


def parse_duration(text: str | None) -> tuple[float | None, WarningCode | None]:
    """Seconds, None where the text is not a duration, and a warning code, None where all is well."""
    text = (text or "").strip(SPACE)
    if not text:
        return None, "duration_missing"
    warning: WarningCode | None = None
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


def duration_of(value: object, warnings: set[WarningCode]) -> float | None:
    """Seconds from a JSON value; None where it is not a duration, with a warning if it is a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if 0 <= value <= sys.float_info.max:
        return abs(float(value))
    warnings.add("duration_invalid")
    return None


def parse_timestamp(text: str | None) -> int | None:
    """Nanoseconds since 1970 of an ISO 8601 time, UTC where it has no offset; None for anything else."""
    match = _TIMESTAMP.fullmatch((text or "").strip(SPACE))
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, _, sign, offset_hours, offset_minutes = match.groups()
    try:
        moment = datetime(int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0))
        offset = timedelta(hours=int(offset_hours or 0), minutes=int(offset_minutes or 0))
        seconds = (moment - _EPOCH - (-offset if sign == "-" else offset)) // timedelta(seconds=1)
    except (ValueError, OverflowError):
        return None
    return seconds * 10**9 + int((fraction or "0")[:9].ljust(9, "0"))
