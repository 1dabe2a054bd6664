"""Test cases to rows: identities and their ordinals, attempts, failed teardowns that are merged, properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from accel_ci.model import Outcome
from accel_ci.reports.fields import Fields
from accel_ci.reports.identities import Identities, Identity
from accel_ci.reports.markup import Tag, Values
from accel_ci.reports.outcomes import worst
from accel_ci.reports.report import SEVERITY, Properties, ReadLimits, Report
from accel_ci.reports.scanner import Damage

from .verdicts import ElementVerdict, outcomes_of_attributes, worst_of

CASE_ATTRIBUTES = ("classname", "name", "file", "time", "status", "result")
"""The attributes of a test case that matter; `Tag.places` has them in this order."""


@dataclass
class Suite:
    """A suite that is open. `label` and `file` stand for those that its cases lack."""

    number: int
    name: str | None
    label: str
    file: str | None
    declared: Mapping[str, int]  # its attributes `tests`, `errors` and `failures`
    cases: int = 0  # `testcase` elements inside it, at any depth
    faults: set[Outcome] = field(default_factory=set)  # kinds of outcomes inside it, at any depth
    verdicts: list[ElementVerdict] = field(default_factory=list)  # its own outcome elements
    message: str | None = None  # the first line of the case's `system-err`


@dataclass
class Children:
    """The child elements of a test case that matter."""

    verdicts: list[ElementVerdict] = field(default_factory=list)
    reruns: list[ElementVerdict] = field(default_factory=list)
    properties: list[tuple[str, str]] = field(default_factory=list)


CHILDLESS = Children()


class Rows:
    """The rows of one report, in document order. `target`: the Bazel label that stands for a missing class name."""

    def __init__(self, report: Report, fields: Fields, limits: ReadLimits, target: str | None) -> None:
        self._columns, self._fields, self._limits, self._target = report.columns, fields, limits, target
        self._identities = Identities()
        self._suites: list[int] = []  # by row: the number of its suite
        self._merged: set[int] = set()  # rows that a failed teardown was merged into
        self._properties: dict[int, Properties] = {}
        c = self._columns
        self._lists: tuple[list[Any], ...] = (
            c.classname, c.name, c.file, c.outcome, c.duration_s, c.message, c.attempt, self._suites,
        )  # fmt: skip

    @property
    def room(self) -> int:
        """The number of rows that the limit still allows."""
        return self._limits.rows - len(self._columns)

    def add(self, suite: Suite, tag: Tag, values: Values, children: Children) -> None:
        """Add the rows of a test case that is closed; raises `Damage` at the limit."""
        classname_at, name_at, file_at, time_at, status_at, result_at = tag.places
        fields = self._fields
        name = fields.name(values[name_at])
        classname = fields.label(values[classname_at]) or self._target
        if classname is None:
            classname = suite.label
            fields.warnings.add("missing_classname")
        file = fields.label(values[file_at]) or suite.file
        duration_s = fields.duration(values[time_at])
        outcome: Outcome = "passed"
        message = None
        of_attributes = outcomes_of_attributes(values[status_at], values[result_at])
        suite.faults.update(of_attributes)
        if children.verdicts:
            outcome, message = worst_of(children.verdicts, fields)
            if len(children.verdicts) == 1 and children.verdicts[0].teardown:
                places = self._identities.places((classname, name, file))
                row = next((row for row in places if self._suites[row] == suite.number), None)
                if row is not None and row not in self._merged:
                    self._merge(row, children, duration_s)
                    return
        elif of_attributes:
            outcome = worst(of_attributes)
            if outcome in ("failed", "error"):
                fields.warnings.add("status_attribute_only")
        self._add(suite, (classname, name, file), outcome, duration_s, message, children)

    def add_fault(self, suite: Suite, outcome: Outcome, message: str | None) -> None:
        """Add the row of a suite that failed itself; raises `Damage` at the limit."""
        classname = self._fields.label(suite.name)
        self._fields.warnings |= {"suite_error"} if classname else {"suite_error", "missing_classname"}
        self._add(suite, (classname or "", "(suite)", suite.file), outcome, None, message)

    def _add(
        self, suite: Suite, identity: Identity, outcome: Outcome, duration_s: float | None, message: str | None,
        children: Children = CHILDLESS,
    ) -> None:  # fmt: skip
        classname, name, file = identity
        row = len(self._suites) + len(children.reruns)
        if row >= self._limits.rows:
            raise Damage("x_too_many_rows")
        given = self._identities.give(identity, row)
        if given is not name:
            self._fields.warnings.add("duplicate_identity")
        for attempt, rerun in enumerate(children.reruns):
            self._append(classname, given, file, rerun.outcome, rerun.duration_s, rerun.message, attempt, suite.number)
        if children.properties:
            self._properties[row] = tuple(children.properties)
        self._append(classname, given, file, outcome, duration_s, message, len(children.reruns), suite.number)

    def add_ordinary(
        self, suite: Suite, values: Mapping[str, Sequence[str]], verdicts: Mapping[int, ElementVerdict], count: int
    ) -> bool:
        """Add many cases at a time, by attribute; False, and nothing added, if one of them needs more care.

        `verdicts` has those of the cases with an outcome element, by place.
        """
        names, fields, keys = values.get("name", ()), self._fields, values.keys()
        joined = "".join(names)
        if not {"classname", "name", "time"} <= keys or keys & {"status", "result"}:
            return False
        if not joined.isprintable() or "\\" in joined or not all(map(str.strip, names)):
            return False
        labels = fields.labels(values["classname"])
        if None in labels or any(verdict.teardown for verdict in verdicts.values()):
            return False
        classnames = cast("list[str]", labels)
        files = [own or suite.file for own in fields.labels(values["file"])] if "file" in values else [suite.file] * count
        row = len(self._columns)
        given = dict(zip(zip(classnames, names, files, strict=True), range(row, row + count), strict=True))
        if len(given) < count or not self._identities.first.keys().isdisjoint(given):
            return False
        self._identities.first.update(given)
        durations = fields.durations(values["time"])
        added: tuple[Sequence[Any], ...] = (
            classnames, names, files, ["passed"] * count, durations, [None] * count, [0] * count, [suite.number] * count,
        )  # fmt: skip
        for column, of_column in zip(self._lists, added, strict=True):
            column += of_column
        for place, verdict in verdicts.items():
            self._columns.outcome[row + place], self._columns.message[row + place] = verdict.outcome, verdict.message
        return True

    def finish(self) -> None:
        """Fill the columns in which few rows have a value."""
        columns, count = self._columns, len(self._columns)
        columns.properties = [()] * count
        for row, properties in self._properties.items():
            columns.properties[row] = properties
        columns.cached = [False] * count
        columns.target = [self._target] * count

    def _append(self, *values: object) -> None:
        for column, value in zip(self._lists, values, strict=True):
            column.append(value)

    def _merge(self, row: int, children: Children, duration_s: float | None) -> None:
        """Merge a failed teardown, which was written as a separate case, into its case."""
        self._merged.add(row)
        self._fields.warnings.add("merged_teardown_error")
        columns, [verdict] = self._columns, children.verdicts
        if SEVERITY[verdict.outcome] < SEVERITY[columns.outcome[row]]:
            columns.outcome[row], columns.message[row] = verdict.outcome, verdict.message
        durations = [seconds for seconds in (columns.duration_s[row], duration_s) if seconds is not None]
        columns.duration_s[row] = sum(durations) if durations else None
        if children.properties:
            self._properties[row] = (*self._properties.get(row, ()), *children.properties)
        classname, name, file = columns.classname[row], columns.name[row], columns.file[row]
        for rerun in children.reruns:
            attempt, suite = columns.attempt[row], self._suites[row]
            self._append(classname, name, file, rerun.outcome, rerun.duration_s, rerun.message, attempt, suite)
            columns.attempt[row] += 1
