"""The walk over a JUnit document: suites, their cases, and the children of cases that matter."""

from __future__ import annotations

from collections.abc import Iterator

from accel_ci.model import Outcome
from accel_ci.reports.characters import Characters
from accel_ci.reports.fields import Fields
from accel_ci.reports.markup import Markup, Rejection, Tag, Values
from accel_ci.reports.outcomes import worst
from accel_ci.reports.report import ReadLimits, Report, rejected
from accel_ci.reports.scanner import Damage
from accel_ci.reports.text import first_line
from accel_ci.reports.times import parse_timestamp

from .rows import CASE_ATTRIBUTES, CHILDLESS, Children, Rows, Suite
from .runs import Runs
from .verdicts import KINDS, OUTCOMES, ElementVerdict, verdict_of_element, worst_of

_Tags = Iterator[tuple[Tag, Values] | None]

_SUITES = ("testsuite", "testsuites")
_CHECK = "http://check.sourceforge.net/"  # the tool Check: another format with this root
_FAULTS: dict[str, Outcome] = {"errors": "error", "failures": "failed"}


def read_junit(characters: Characters, limits: ReadLimits, target: str | None = None, *, one_by_one: bool = False) -> Report:
    """Read a JUnit report; never raises. `target` is the Bazel label that stands for a missing class name.

    `one_by_one`: do not take ordinary cases many at a time, which is slower and has the same result.
    """
    reader = _Reader(characters, limits, target, one_by_one)
    try:
        reader.read()
    except Rejection as rejection:
        return rejected(rejection.code, characters.warnings)
    except Damage as damage:
        characters.warnings.add(damage.code)
    reader.rows.finish()
    return reader.report


class _Reader:
    def __init__(self, characters: Characters, limits: ReadLimits, target: str | None, one_by_one: bool) -> None:
        self.report = Report(warnings=characters.warnings)
        self._markup = Markup(characters, limits, CASE_ATTRIBUTES)
        self._fields = Fields(characters.warnings)
        self.rows = Rows(self.report, self._fields, limits, target)
        self._runs = None if one_by_one else Runs(self._markup, self._fields, self.rows)
        self._suites: list[Suite] = []  # those that are open
        self._opened = 0  # suites so far

    def read(self) -> None:
        """Walk the document; raises `Damage` where it ends early."""
        tag, values = self._markup.root()
        if tag.name not in _SUITES or (tag.value(values, "xmlns") or "").startswith(_CHECK):
            raise Rejection("failsafe_summary" if tag.name == "failsafe-summary" else "not_junit_root")
        self._open_suite(tag, values)
        tags = self._tags()
        for event in tags:
            if event is None:
                self._close_suite()
                continue
            tag, values = event
            suite = self._suites[-1]
            if tag.name == "testcase":
                self.rows.add(suite, tag, values, CHILDLESS if tag.closed else self._children(tags))
                if self._runs is not None:
                    self._runs.take(tag, suite)
            elif tag.name in _SUITES:
                self._open_suite(tag, values)
            elif tag.name == "properties":
                name = None if suite.name is None else self._fields.plain(suite.name)
                self.report.properties += [(name, key, value) for key, value in self._properties(tag, tags)]
            elif tag.name in ("error", "failure"):
                suite.verdicts.append(self._verdict(tag, values, tags))
            else:
                text = self._text(tag, tags, keep=tag.name == "system-err")
                suite.message = suite.message or first_line(text)

    def _tags(self) -> _Tags:
        """The tags of the document; cases and outcome elements are noted in the innermost suite."""
        for event in self._markup.tags():
            if event is not None:
                name = event[0].name
                if name == "testcase":
                    self._suites[-1].cases += 1
                elif name in KINDS:
                    self._suites[-1].faults.add(KINDS[name])
            yield event

    def _open_suite(self, tag: Tag, values: Values) -> None:
        self._opened += 1
        outer = self._suites[-1] if self._suites else Suite(0, None, "", None, {})
        name = tag.value(values, "name")
        label = self._fields.label(name) or outer.label
        file = self._fields.label(tag.value(values, "file")) or outer.file
        declared = {name: _number(tag.value(values, name)) for name in ("tests", "errors", "failures")}
        self._suites.append(Suite(self._opened, name, label, file, declared))
        if self.report.timestamp_ns is None:
            self.report.timestamp_ns = parse_timestamp(tag.value(values, "timestamp"))
        if tag.closed:
            self._close_suite()

    def _close_suite(self) -> None:
        suite = self._suites.pop()
        if suite.declared["tests"] > suite.cases:
            self._fields.warnings.add("count_mismatch")
        unseen = {kind for name, kind in _FAULTS.items() if suite.declared[name]} - suite.faults
        if suite.verdicts:
            self.rows.add_fault(suite, *worst_of(suite.verdicts, self._fields))
        elif unseen:
            self.rows.add_fault(suite, worst(unseen), suite.message)
            suite.faults |= unseen
        if self._suites:
            self._suites[-1].cases += suite.cases
            self._suites[-1].faults |= suite.faults

    def _children(self, tags: _Tags) -> Children:
        """Read the children of a test case to its end."""
        children = Children()
        for event in tags:
            if event is None:
                break
            tag, values = event
            if tag.name in KINDS:
                (children.verdicts if tag.name in OUTCOMES else children.reruns).append(self._verdict(tag, values, tags))
            elif tag.name == "properties":
                children.properties += self._properties(tag, tags)
            else:
                self._text(tag, tags, keep=False)
        return children

    def _verdict(self, tag: Tag, values: Values, tags: _Tags) -> ElementVerdict:
        """Read an outcome or rerun element to its end."""
        return verdict_of_element(tag, values, self._text(tag, tags, keep=True), self._fields)

    def _text(self, tag: Tag, tags: _Tags, *, keep: bool) -> str:
        """Read an element to its end and return all its text, empty unless it is to be kept."""
        if tag.closed:
            return ""
        self._markup.open_text(keep)
        depth = 1
        for event in tags:
            if event is None:
                depth -= 1
                if not depth:
                    break
            else:
                depth += not event[0].closed
        return self._fields.plain(self._markup.close_text())

    def _properties(self, tag: Tag, tags: _Tags) -> list[tuple[str, str]]:
        """Read a `properties` element to its end."""
        entries: list[tuple[str, str]] = []
        for event in () if tag.closed else tags:
            if event is None:
                break
            entry, values = event
            text = self._text(entry, tags, keep=True)
            if entry.name == "property":
                value = entry.value(values, "value")
                name = self._fields.plain(entry.value(values, "name") or "")
                entries.append((name, text if value is None else self._fields.plain(value)))
        return entries


def _number(digits: str | None) -> int:
    """The value of an attribute of digits, at least 10**18 for a longer one; 0 for any other."""
    return int(digits.lstrip("0")[:19] or 0) if digits and digits.isascii() and digits.isdigit() else 0
