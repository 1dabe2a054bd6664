"""The failed tests of jobs, as downstreams report them, and whether a change is to blame for them.

What a downstream sends is not trusted: all that is not a list of tests with names is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from accel_ci.relay.rows import JobRow

Novelty = Literal["new", "broken", "unknown"]
"""`broken`: the test also fails without the change. `unknown`: the job has not run without it."""

COMPARED = 3
"""The newest jobs of upstream's branch, and nightly ones, that a pull request is compared with."""

Baseline = Mapping[tuple[str, str], frozenset[str]]
"""The tests that fail without a change, by repository and job."""


@dataclass(frozen=True)
class Failure:
    """A failed test of a job."""

    test: str
    message: str
    novelty: Novelty = "unknown"


def failures_of(row: JobRow) -> list[Failure]:
    """Return the failed tests that a row lists."""
    try:
        found = json.loads(row.failed_tests) if row.failed_tests else []
    except (ValueError, RecursionError):
        return []
    every = found if isinstance(found, list) else []
    return [Failure(name, _text(one, "message")) for one in every if isinstance(one, dict) and (name := _name(one))]


def baseline_of(rows: Iterable[JobRow]) -> Baseline:
    """Return what fails without a change, by rows of upstream's branch and of nightly builds, the newest first."""
    newest: dict[tuple[str, str], list[JobRow]] = {}
    for row in rows:
        if row.event != "pull_request" and row.conclusion in ("success", "failure"):
            newest.setdefault((row.repository, row.job_name), []).append(row)
    return {
        key: frozenset(failure.test for row in every[:COMPARED] for failure in failures_of(row))
        for key, every in newest.items()
    }


def compared(row: JobRow, baseline: Baseline) -> list[Failure]:
    """Return the failed tests of a row, the new ones first."""
    known = baseline.get((row.repository, row.job_name))
    found = [
        Failure(one.test, one.message, "unknown" if known is None else "broken" if one.test in known else "new")
        for one in failures_of(row)
    ]
    return sorted(found, key=lambda one: one.novelty == "broken")


def verdict_of(row: JobRow) -> tuple[str, str, str]:
    """Return category, confidence and summary of a row's `triage_verdict`; empty without one."""
    try:
        found = json.loads(row.triage_verdict) if row.triage_verdict else {}
    except (ValueError, RecursionError):
        found = {}
    document = found if isinstance(found, dict) else {}
    return _text(document, "category"), _text(document, "confidence"), _text(document, "summary")


def _name(one: Mapping[str, Any]) -> str:
    return "::".join(part for part in (_text(one, "classname"), _text(one, "name")) if part)


def _text(one: Mapping[str, Any], key: str) -> str:
    """A text, in which halves of characters are spelt out; JSON can hold them, but no page can."""
    value = one.get(key)
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else ""
