"""Outcomes of test cases from their elements and attributes. Rows are made from them in `rows.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from accel_ci.model import Outcome
from accel_ci.reports.fields import Fields
from accel_ci.reports.markup import Tag, Values
from accel_ci.reports.outcomes import refined
from accel_ci.reports.report import SEVERITY
from accel_ci.reports.text import first_line, is_blank

OUTCOMES: dict[str, Outcome] = {"failure": "failed", "error": "error", "skipped": "skipped"}
"""The outcome elements."""

RERUNS: dict[str, Outcome] = {
    "rerun": "failed", "rerunFailure": "failed", "flakyFailure": "failed", "rerunError": "error", "flakyError": "error",
}  # fmt: skip
"""The elements for earlier attempts of the case."""

KINDS = OUTCOMES | RERUNS

_OF_ATTRIBUTE: dict[str, Outcome] = {
    "suppressed": "not_run", "disabled": "not_run", "skipped": "skipped", "failed": "failed", "error": "error",
    "skip": "skipped", "ignored": "skipped", "fail": "failed", "failure": "failed", "errored": "error",
}  # fmt: skip
_TEARDOWN = re.compile(r"failed on teardown with|test teardown failure\Z")
_XPASSED = "xfail-marked test passes unexpectedly"


@dataclass
class ElementVerdict:
    """An outcome or rerun element.

    `kind` is its outcome in `KINDS`, before the message refines it; `teardown`: it is the error of a failed teardown.
    """

    kind: Outcome
    outcome: Outcome
    message: str | None
    duration_s: float | None = None
    teardown: bool = False


def verdict_of_element(tag: Tag, values: Values, text: str, fields: Fields) -> ElementVerdict:
    """The verdict of an outcome or rerun element from its attributes and its text."""
    kind, attribute = KINDS[tag.name], tag.value(values, "message")
    own_message = None if attribute is None else fields.plain(attribute)
    message = first_line(text) if is_blank(own_message) else own_message
    its_type = tag.value(values, "type")
    if kind != "skipped":
        time = tag.value(values, "time") if tag.name in RERUNS else None
        duration_s = None if time is None else fields.duration(time)
        teardown = tag.name == "error" and _TEARDOWN.match(own_message or "") is not None
        return ElementVerdict(kind, refined(kind, message, its_type), message, duration_s, teardown)
    if its_type in ("pytest.xfail", "XFAIL"):
        return ElementVerdict(kind, "xfailed", message)
    return ElementVerdict(kind, "xpassed" if own_message == _XPASSED else kind, message)


def worst_of(verdicts: Sequence[ElementVerdict], fields: Fields) -> tuple[Outcome, str | None]:
    """The worst outcome of one or more elements, with the message of the first that has it."""
    first = min(verdicts, key=lambda verdict: SEVERITY[verdict.outcome])
    if len({verdict.outcome for verdict in verdicts}) > 1:
        fields.warnings.add("multiple_outcomes")
    return first.outcome, first.message


def outcomes_of_attributes(status: str | None, result: str | None) -> list[Outcome]:
    """The outcomes that the attributes `status` and `result` of a case mean."""
    values = [(status or "").lower(), (result or "").lower()]
    outcomes: list[Outcome] = ["not_run"] if values[0] == "notrun" else []
    return outcomes + [_OF_ATTRIBUTE[value] for value in values if value in _OF_ATTRIBUTE]
