"""Decode the events of workers, one JSON line each, as `accel_ci.runner.events` writes them. `tally.py` adds them up."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from typing import Any

import msgspec

_LOG = logging.getLogger(__name__)


class Event(msgspec.Struct, gc=False):
    """A line of a worker. Each kind of event has some of the fields; what a kind does not have is None."""

    event: str
    at: datetime
    suite: str | None = None
    test: str | None = None
    outcome: str | None = None
    started_at: str | None = None
    duration_s: float | None = None
    message: str | None = None
    output_tail: str | None = None
    card: str | None = None
    host: str | None = None
    healthy: bool | None = None
    reason: str | None = None
    setup_s: float | None = None


_DECODER = msgspec.json.Decoder(Event)


def decode_events(lines: bytes) -> list[Event]:
    r"""Decode complete lines. Half surrogates become `\ud800`; a line that is not an event is logged and left out."""
    try:
        return _DECODER.decode_lines(lines)
    except msgspec.MsgspecError:
        return [event for line in lines.splitlines() if (event := _decode_line(line)) is not None]


def _decode_line(line: bytes) -> Event | None:
    try:
        return msgspec.convert(_with_valid_text(json.loads(line)), Event)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        _LOG.warning("a worker wrote a line that is not an event (%s): %.200r", error, line)
        return None


def _with_valid_text(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return {name: _with_valid_text(field) for name, field in value.items()} if isinstance(value, dict) else value
