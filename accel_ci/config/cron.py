"""Check cron expressions as Dagster does: what Dagster refuses would stop every command that loads the definitions.

The only module of the configuration that asks Dagster, whose import takes a second; the usual expressions need no question.
"""

from __future__ import annotations

import re
import time

_FIELDS = ("minute", "hour", "day of the month", "month", "day of the week")
_USUAL = re.compile(r"[1-5]?\d (1?\d|2[0-3])(,(1?\d|2[0-3]))* \* \* (\*|[0-6])")


def check_cron(expression: str) -> str:
    """Return the expression. Raises `ValueError` with the fault if Dagster refuses it, or if its time never comes."""
    if _USUAL.fullmatch(expression):
        return expression
    if not _is_valid(expression):
        raise ValueError(f"not a cron expression that Dagster takes ({_fault(expression)}); write one such as '0 2 * * *'")
    if not _comes(expression):
        raise ValueError("not a cron expression that ever comes: no month that it names has such a day")
    return expression


def _is_valid(expression: str) -> bool:
    from dagster._utils.schedules import is_valid_cron_schedule

    try:
        return is_valid_cron_schedule(expression)
    except Exception:
        return False


def _comes(expression: str) -> bool:
    """Find a time of the expression as Dagster's daemon does."""
    from dagster._utils.schedules import schedule_execution_time_iterator

    try:
        next(schedule_execution_time_iterator(time.time(), expression, "UTC", True))
    except Exception:
        return False
    return True


def _fault(expression: str) -> str:
    fields = expression.split()
    if expression.startswith("@"):
        return f"{expression} is no name of a time, as @daily is"
    if len(fields) != len(_FIELDS):
        return f"it has {len(fields)} fields, five are needed, without seconds, years and time zones"
    for place, (name, field) in enumerate(zip(_FIELDS, fields, strict=True)):
        alone = " ".join(field if other == place else "*" for other in range(len(_FIELDS)))
        if not _is_valid(alone):
            return f"{field!r} is no {name}"
    return "its fields do not fit together"
