"""Log lines as JSON, an object for each, with the ids of the run and of the build that a line is about.

Two places use it: the command line with `ACCEL_CI_LOG_FORMAT=json`, and Dagster with the handler in `deploy/kubernetes`,
whose records know their run themselves.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import structlog

from accel_ci.errors import ConfigError
from accel_ci.redaction import redact

FORMAT_ENVIRONMENT = "ACCEL_CI_LOG_FORMAT"
"""The variable that chooses the format of the command line's log: `text`, the default, or `json`."""

_TEXT = "%(asctime)s %(name)s: %(message)s"
_IDS: dict[str, str] = {}
_Event = MutableMapping[str, Any]


@contextmanager
def about(**ids: str) -> Iterator[None]:
    """Add these ids (`run`, `build`, `stage`) to the lines of all threads of this process, until the context ends."""
    before = dict(_IDS)
    _IDS.update(ids)
    try:
        yield
    finally:
        _IDS.clear()
        _IDS.update(before)


class JsonLines(structlog.stdlib.ProcessorFormatter):
    """Formats records of any logger: `time` in ISO 8601, `level`, `logger`, `message`, `exception`, and the ids."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take whatever `logging.config` passes to a formatter, and use nothing of it."""
        super().__init__(
            processors=[
                _add_record,
                self.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.EventRenamer("message"),
                structlog.processors.JSONRenderer(),
            ],
        )

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without secrets."""
        return redact(super().format(record))


def log_formatter() -> logging.Formatter:
    """Return the formatter that the environment asks for. Raises `ConfigError` for an unknown format."""
    chosen = os.environ.get(FORMAT_ENVIRONMENT) or "text"
    if chosen not in ("text", "json"):
        raise ConfigError(f"{FORMAT_ENVIRONMENT} is {chosen!r}; set it to text or json")
    return JsonLines() if chosen == "json" else logging.Formatter(_TEXT)


def _add_record(_logger: Any, _method: str, event: _Event) -> _Event:
    """Add what the record knows; Dagster's know their run, step and job, and the build by the tags of the job."""
    record: logging.LogRecord = event["_record"]
    of_dagster: dict[str, Any] = getattr(record, "dagster_meta", None) or {}
    tags = of_dagster.get("job_tags") or {}
    revision, variant = (tags.get(f"dagster/partition/{dimension}") for dimension in ("revision", "variant"))
    found = {
        "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        **_IDS,
        "run": of_dagster.get("run_id") or _IDS.get("run"),
        "job": of_dagster.get("job_name"),
        "step": of_dagster.get("step_key"),
        "build": f"{revision}~{variant}" if revision and variant else _IDS.get("build"),
    }
    event.update({name: value for name, value in found.items() if value is not None})
    if of_dagster:
        event["event"] = of_dagster.get("orig_message") or event["event"]
    return event
