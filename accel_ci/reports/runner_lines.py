"""The event lines of the project's own runner to rows, one for each `attempt` line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from accel_ci.model import OUTCOMES

from .fields import Fields
from .json_lines import Object
from .report import ReadLimits, Report, Row
from .text import message_of, plain
from .times import duration_of
from .warning_codes import WarningCode

_PROPERTIES = ("suite", "round", "started_at", "card", "host", "worker")
STARTED_FIELDS = ("round", "card", "host", "worker")
"""The fields of `worker_started` that hold for all attempts after it, unless an attempt has its own."""


def read_runner_lines(events: Iterable[Object], warnings: set[WarningCode], limits: ReadLimits) -> Report:
    """Read the events of a worker; never raises. The attempts of a test are numbered in the order of their lines."""
    report, fields = Report(warnings=warnings), Fields(warnings)
    attempts: Counter[tuple[str, str, str | None]] = Counter()
    started: Object = {}
    finished = False
    for event in events:
        finished |= event.get("event") == "worker_finished"
        attempt = attempt_of(event, started, warnings)
        if attempt is None:
            continue
        if len(report.columns) >= limits.rows:
            warnings.add("x_too_many_rows")
            break
        row = _row(attempt, fields)
        identity = (row.classname, row.name, row.file)
        report.columns.append(replace(row, attempt=attempts[identity]))
        attempts[identity] += 1
    if not finished:
        warnings.add("x_worker_unfinished")
    return report


def attempt_of(event: Object, started: Object, warnings: set[WarningCode]) -> Object | None:
    """An attempt with a known outcome, seconds or None, and the fields of its worker's start; None for another event.

    `started` holds those fields from one event to the next.
    """
    given = {name: value for name, value in event.items() if value is not None}
    if given.get("event") == "worker_started":
        started |= {name: given[name] for name in STARTED_FIELDS if name in given}
    if given.get("event") != "attempt":
        return None
    if given.get("outcome") not in OUTCOMES:
        given["outcome"] = "error"
        warnings.add("x_unknown_outcome")
    return {**started, **given, "duration_s": duration_of(given.get("duration_s"), warnings)}


def _row(event: Object, fields: Fields) -> Row:
    test = event.get("test")
    classname, name, file = fields.of_node(test if isinstance(test, str) else "")
    return Row(
        classname or "", name, file, event["outcome"], event["duration_s"], message_of(event.get("message")), 0,
        tuple((key, plain(str(event[key]))) for key in _PROPERTIES if event.get(key) is not None),
    )  # fmt: skip
