"""The walk over a JUnit document: suites, their cases, and the children of cases that matter."""

from __future__ import annotations

from collections.abc import Iterator

from accel_ci.reports.characters import Characters
from accel_ci.reports.markup import Markup, Rejection, Tag, Values
from accel_ci.reports.report import ReadLimits, Report, rejected
from accel_ci.reports.scanner import Damage
from accel_ci.reports.times import parse_timestamp

from .fields import Fields
from .rows import CASE_ATTRIBUTES, CHILDLESS, Children, Rows, Suite
from .runs import Runs
from .verdicts import OUTCOMES, RERUNS, verdict_of_element

_Tags = Iterator[tuple[Tag, Values] | None]

_SUITES = ("testsuite", "testsuites")


def read_junit(characters: Characters, limits: ReadLimits, target: str | None = None, *, one_by_one: bool = False) -> Report:
    """Read a JUnit report; never raises.

    Args:
        characters: The report, from its first `<`.
        limits: The limits of reading it.
        target: The Bazel label that stands for a missing class name.
        one_by_one: Do not take ordinary cases many at a time, which is slower and has the same result.
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
        self._cases = 0  # `testcase` elements that were closed, at any depth

    def read(self) -> None:
        """Walk the document; raises `Damage` where it ends early."""
        tag, values = self._markup.root()
        if tag.name not in _SUITES:
            raise Rejection("failsafe_summary" if tag.name == "failsafe-summary" else "not_junit_root")
        self._open_suite(tag, values)
        tags = self._markup.tags()
        for event in tags:
            if event is None:
                self._close_suite()
                continue
            tag, values = event
            if tag.name == "testcase":
                children = CHILDLESS if tag.closed else self._children(tags)
                suite = self._suites[-1]
                self.rows.add(suite, tag, values, children)
                self._cases += 1
                if self._runs is not None:
                    self._cases += self._runs.take(tag, suite)
            elif tag.name in _SUITES:
                self._open_suite(tag, values)
            elif tag.name == "properties":
                suite_name = self._suites[-1].raw_name
                name = None if suite_name is None else self._fields.plain(suite_name)
                self.report.properties += [(name, key, value) for key, value in self._properties(tag, tags)]
            else:
                self._text(tag, tags, keep=False)

    def _open_suite(self, tag: Tag, values: Values) -> None:
        self._opened += 1
        outer = self._suites[-1] if self._suites else Suite(0, None, "", None, None, 0)
        name, tests = tag.value(values, "name"), tag.value(values, "tests")
        label = self._fields.label(name) or outer.label
        file = self._fields.label(tag.value(values, "file")) or outer.file
        self._suites.append(Suite(self._opened, name, label, file, tests, self._cases))
        if self.report.timestamp_ns is None:
            self.report.timestamp_ns = parse_timestamp(tag.value(values, "timestamp"))
        if tag.closed:
            self._close_suite()

    def _close_suite(self) -> None:
        suite = self._suites.pop()
        tests = suite.tests or ""
        if tests.isascii() and tests.isdigit():
            digits = tests.lstrip("0") or "0"
            if len(digits) > 18 or int(digits) > self._cases - suite.cases_before:
                self._fields.warnings.add("count_mismatch")

    def _children(self, tags: _Tags) -> Children:
        """Read the children of a test case to its end."""
        children = Children()
        for event in tags:
            if event is None:
                break
            tag, values = event
            if tag.name in OUTCOMES or tag.name in RERUNS:
                verdict = verdict_of_element(tag, values, self._text(tag, tags, keep=True), self._fields)
                (children.verdicts if tag.name in OUTCOMES else children.reruns).append(verdict)
            elif tag.name == "properties":
                children.properties += self._properties(tag, tags)
            else:
                self._cases += tag.name == "testcase"
                self._text(tag, tags, keep=False)
        return children

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
                self._cases += event[0].name == "testcase"
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
