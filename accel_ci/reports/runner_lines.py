"""The event lines of the project's own runner to rows, one for each `attempt` line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    attempts: dict[tuple[str, str, str | None], int] = {}
    finished = False

    def watched() -> Iterator[Object]:
        nonlocal finished
        for event in events:
            finished |= event.get("event") == "worker_finished"
            yield event

    for event in attempts_of(watched(), warnings):
        if len(report.columns) >= limits.rows:
            warnings.add("x_too_many_rows")
            break
        row = _row(event, fields)
        identity = (row.classname, row.name, row.file)
        attempts[identity] = attempts.get(identity, -1) + 1
        report.columns.append(replace(row, attempt=attempts[identity]))
    if not finished:
        warnings.add("x_worker_unfinished")
    return report


def attempts_of(events: Iterable[Object], warnings: set[WarningCode]) -> Iterator[Object]:
    """The attempts among events, with the fields of their worker's start, a known outcome, and seconds or None."""
    started: Object = {}
    for event in events:
        given = {name: value for name, value in event.items() if value is not None}
        if given.get("event") == "worker_started":
            started |= {name: given[name] for name in STARTED_FIELDS if name in given}
        elif given.get("event") == "attempt":
            outcome = given.get("outcome")
            if outcome not in OUTCOMES:
                outcome = "error"
                warnings.add("x_unknown_outcome")
            seconds = duration_of(given.get("duration_s"), warnings)
            yield {**started, **given, "outcome": outcome, "duration_s": seconds}


def _row(event: Object, fields: Fields) -> Row:
    test = event.get("test")
    classname, name, file = fields.of_node(test if isinstance(test, str) else "")
    return Row(
        classname or "", name, file, event["outcome"], event["duration_s"], message_of(event.get("message")), 0,
        tuple((key, plain(str(event[key]))) for key in _PROPERTIES if event.get(key) is not None),
    )  # fmt: skip
