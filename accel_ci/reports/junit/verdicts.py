"""Outcomes of test cases from their elements and attributes. Rows are made from them in `rows.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from accel_ci.model import Outcome
from accel_ci.reports.markup import Tag, Values
from accel_ci.reports.outcomes import refined, worst
from accel_ci.reports.report import SEVERITY
from accel_ci.reports.text import first_line, is_blank

from .fields import Fields

OUTCOMES: dict[str, Outcome] = {"failure": "failed", "error": "error", "skipped": "skipped"}
"""The outcome elements."""

RERUNS: dict[str, Outcome] = {
    "rerun": "failed", "rerunFailure": "failed", "flakyFailure": "failed", "rerunError": "error", "flakyError": "error",
}  # fmt: skip
"""The elements for earlier attempts of the case."""

_OF_ATTRIBUTE: dict[str, Outcome] = {
    "suppressed": "not_run", "disabled": "not_run", "skipped": "skipped", "failed": "failed", "error": "error",
}  # fmt: skip
_TEARDOWN = re.compile(r"failed on teardown with|test teardown failure\Z")
_XPASSED = "xfail-marked test passes unexpectedly"


@dataclass
class ElementVerdict:
    """An outcome or rerun element. `teardown`: it is an error whose message is that of a failed teardown."""

    outcome: Outcome
    message: str | None
    duration_s: float | None = None
    teardown: bool = False


def verdict_of_element(tag: Tag, values: Values, text: str, fields: Fields) -> ElementVerdict:
    """The verdict of an outcome or rerun element from its attributes and its text."""
    element, attribute = tag.name, tag.value(values, "message")
    own_message = None if attribute is None else fields.plain(attribute)
    message = first_line(text) if is_blank(own_message) else own_message
    kind = tag.value(values, "type")
    if element in RERUNS:
        time = tag.value(values, "time")
        return ElementVerdict(
            refined(RERUNS[element], message, kind), message, None if time is None else fields.duration(time)
        )
    if element != "skipped":
        teardown = element == "error" and _TEARDOWN.match(own_message or "") is not None
        return ElementVerdict(refined(OUTCOMES[element], message, kind), message, teardown=teardown)
    if kind in ("pytest.xfail", "XFAIL"):
        return ElementVerdict("xfailed", message)
    return ElementVerdict("xpassed" if own_message == _XPASSED else "skipped", message)


def worst_of(verdicts: Sequence[ElementVerdict], fields: Fields) -> tuple[Outcome, str | None]:
    """The worst outcome of one or more elements, with the message of the first that has it."""
    first = min(verdicts, key=lambda verdict: SEVERITY[verdict.outcome])
    if len({verdict.outcome for verdict in verdicts}) > 1:
        fields.warnings.add("multiple_outcomes")
    return first.outcome, first.message


def outcome_of_attributes(status: str | None, result: str | None, fields: Fields) -> Outcome:
    """The outcome of a case without outcome elements."""
    status, result = (status or "").lower(), (result or "").lower()
    outcomes: list[Outcome] = ["not_run"] if status == "notrun" else []
    outcomes += [_OF_ATTRIBUTE[value] for value in (status, result) if value in _OF_ATTRIBUTE]
    outcome = worst(["passed", *outcomes])
    if outcome in ("failed", "error"):
        fields.warnings.add("status_attribute_only")
    return outcome
