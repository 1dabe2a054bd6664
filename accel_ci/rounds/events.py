"""Decode the events of workers, one JSON line each, as `accel_ci.runner.events` writes them. `tally.py` adds them up.

Each line is checked on its own: its form, the range of its numbers and the length of its texts. `admission.py` checks
whether an event can be true.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec

from accel_ci.model import Outcome

QUARANTINED = "quarantined"
"""The event by which the driver records that it accepts nothing more from a worker, with the `reason`."""

_Short = Annotated[str, msgspec.Meta(max_length=4096)]
_Long = Annotated[str, msgspec.Meta(max_length=1 << 18)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e8)]


class Event(msgspec.Struct, gc=False):
    """A line of a worker. Each kind of event has some of the fields; what a kind does not have is None."""

    event: _Short
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    suite: _Short | None = None
    test: _Long | None = None
    outcome: Outcome | None = None
    started_at: _Short | None = None
    duration_s: _Seconds | None = None
    message: _Long | None = None
    output_tail: _Long | None = None
    card: _Short | None = None
    host: _Short | None = None
    healthy: bool | None = None
    reason: _Long | None = None
    driver: _Short | None = None
    setup_s: _Seconds | None = None


@dataclass(frozen=True)
class InvalidEvent:
    """A line that is no event; `problem` says why."""

    problem: str


_DECODER = msgspec.json.Decoder(Event)


def decode_events(lines: bytes) -> Sequence[Event | InvalidEvent]:
    r"""Decode complete lines. Half surrogates become `\ud800`."""
    try:
        return _DECODER.decode_lines(lines)
    except (msgspec.MsgspecError, RecursionError):
        return [_decode_line(line) for line in lines.split(b"\n") if line]


def _decode_line(line: bytes) -> Event | InvalidEvent:
    try:
        return msgspec.convert(_with_valid_text(json.loads(line)), Event)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        return InvalidEvent(f"it wrote a line that is no event ({error}): {line[:200]!r}")


def _with_valid_text(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return {name: _with_valid_text(field) for name, field in value.items()} if isinstance(value, dict) else value
