"""JUnit XML, whoever wrote it, to rows.

Here belongs what elements and attributes mean: identities, outcomes, messages, attempts inside a case, teardown errors that
pytest writes as a case of their own. XML itself is `markup.py`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import cast

from accel_ci.model import Outcome

from .characters import SPACE, Characters
from .durations import parse_duration
from .identities import Identities, Identity
from .markup import Damage, Markup, Rejection, Tag, Values
from .outcomes import refined, worst
from .report import SEVERITY, ColumnReport, ReadLimits, Properties, rejected
from .text import escaped, first_line, is_blank, plain

_Tags = Iterator[tuple[Tag, Values] | None]

_CASE = ("classname", "name", "file", "time", "status", "result")
_OUTCOMES: dict[str, Outcome] = {"failure": "failed", "error": "error", "skipped": "skipped"}
_RERUNS: dict[str, Outcome] = {
    "rerun": "failed", "rerunFailure": "failed", "flakyFailure": "failed", "rerunError": "error", "flakyError": "error",
}  # fmt: skip
_OF_ATTRIBUTE: dict[str, Outcome] = {
    "suppressed": "not_run", "disabled": "not_run", "skipped": "skipped", "failed": "failed", "error": "error",
}  # fmt: skip
_CONTAINERS = ("testsuite", "testsuites")
_TEARDOWN = re.compile(r"failed on teardown with|test teardown failure\Z")
_XPASSED = "xfail-marked test passes unexpectedly"
_TIMESTAMP = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)(?:[T ](\d\d):?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?[ ]?(?:(Z)|([+-])(\d\d)(?::?(\d\d))?)?)?",
    re.ASCII | re.IGNORECASE,
)
_EPOCH = datetime(1970, 1, 1)
_AT_MOST_TIMES = 100_000
_AT_MOST_CHILDREN = 20_000
_AT_MOST_CHILD = 500
_AT_MOST_PATTERNS = 16


@dataclass
class _Container:
    """A suite that is open. `label`, `file`: what its cases inherit."""

    number: int
    raw_name: str | None
    label: str
    file: str | None
    tests: str | None
    cases_before: int


@dataclass
class _Verdict:
    """An outcome or rerun element. `teardown`: it is an error whose message is that of a failed teardown."""

    outcome: Outcome
    message: str | None
    duration_s: float | None = None
    teardown: bool = False


@dataclass
class _Case:
    """A test case that is open."""

    tag: Tag
    values: Values
    verdicts: list[_Verdict] = field(default_factory=list)
    reruns: list[_Verdict] = field(default_factory=list)
    properties: list[tuple[str, str]] = field(default_factory=list)


def read_junit(
    characters: Characters, limits: ReadLimits, target: str | None = None, *, one_by_one: bool = False
) -> ColumnReport:
    """Read a JUnit report; never raises.

    Args:
        characters: The report, from its first `<`.
        limits: What it may cost.
        target: The Bazel label that stands for a missing class name.
        one_by_one: Not to take ordinary cases many at a time, which is slower and gives the same.
    """
    reader = _Reader(characters, limits, target, one_by_one)
    try:
        reader.read()
    except Rejection as rejection:
        return rejected(rejection.code, characters.warnings)
    except Damage as damage:
        characters.warnings.add(damage.code)
        reader.report.status = "salvaged"
    return reader.finish()


class _Reader:
    def __init__(self, characters: Characters, limits: ReadLimits, target: str | None, one_by_one: bool) -> None:
        self.report = ColumnReport(warnings=characters.warnings)
        self._markup = Markup(characters, limits, _CASE)
        self._limits, self._target, self._identities = limits, target, Identities()
        self._warnings = characters.warnings
        self._containers: list[_Container] = []
        self._numbers = 0  # of containers
        self._cases = 0  # elements closed
        self._suites: list[int] = []  # by row: the number of its container
        self._merged: set[int] = set()  # rows that a failed teardown was merged into
        self._properties: dict[int, Properties] = {}
        self._labels: dict[str | None, str | None] = {None: None}  # raw to escaped, None for a blank one
        self._times: dict[str | None, float | None] = {}
        self._children: dict[tuple[str, str], _Verdict] = {}  # by start and end tag, whatever the text
        self._patterns: dict[tuple[str, ...], re.Pattern[str]] = {}
        self._one_by_one = one_by_one
        self._wait = self._waited = 0  # cases to be read one by one before the next run

    # --- walking --------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Walk the document; raises `Damage` where it ends early."""
        tag, values = self._markup.root()
        if tag.name not in _CONTAINERS:
            raise Rejection("failsafe_summary" if tag.name == "failsafe-summary" else "not_junit_root")
        self._open_container(tag, values)
        if tag.closed:
            self._close_container()
        tags = self._markup.tags()
        for event in tags:
            if event is None:
                self._close_container()
            elif (name := event[0].name) == "testcase":
                if event[0].closed:
                    self._add(*event)
                else:
                    self._case(tags, *event)
                self._cases += 1
                self._take_runs(event[0])
            elif name in _CONTAINERS:
                self._open_container(*event)
                if event[0].closed:
                    self._close_container()
            elif name == "properties":
                container = self._containers[-1].raw_name
                name_of = None if container is None else self._plain(container)
                entries = [] if event[0].closed else self._read_properties(tags)
                self.report.properties += [(name_of, key, value) for key, value in entries]
            elif not event[0].closed:
                self._text(tags, keep=False)

    def _case(self, tags: _Tags, tag: Tag, values: Values) -> None:
        """Read a test case with children to its end."""
        case = _Case(tag, values)
        for event in tags:
            if event is None:
                break
            child, attributes = event
            name = child.name
            if name in _OUTCOMES or name in _RERUNS:
                text = "" if child.closed else self._text(tags, keep=True)
                self._judge(case, child, attributes, text)
            elif name == "properties":
                case.properties += [] if child.closed else self._read_properties(tags)
            else:
                self._cases += name == "testcase"
                if not child.closed:
                    self._text(tags, keep=False)
        self._add(tag, values, case)

    def _text(self, tags: _Tags, *, keep: bool) -> str:
        """Read an element to its end; gives back all its text."""
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
        return self._plain(self._markup.close_text())

    def _read_properties(self, tags: _Tags) -> list[tuple[str, str]]:
        """Read a `properties` element to its end."""
        entries = []
        for event in tags:
            if event is None:
                break
            tag, values = event
            text = "" if tag.closed else self._text(tags, keep=True)
            if tag.name == "property":
                value = _attribute(tag, values, "value")
                name = _attribute(tag, values, "name") or ""
                entries.append((self._plain(name), text if value is None else self._plain(value)))
        return entries

    # --- runs of ordinary cases -----------------------------------------------------------------------------------

    def _take_runs(self, tag: Tag) -> None:
        """Take the ordinary cases that follow a case and have its attributes, many at a time.

        The result is what one by one gives; whatever is not quite ordinary is left to that.
        """
        if self._one_by_one or self._waited < self._wait:
            self._waited += 1
            return
        pattern = self._patterns.get(tag.attributes)
        if pattern is None:
            if len(self._patterns) >= _AT_MOST_PATTERNS or tag.qualified != "testcase" or not 0 < len(tag.attributes) <= 20:
                return
            pattern = self._patterns[tag.attributes] = _run_pattern(tag.attributes)
        taken = 0
        while found := self._markup.run(pattern, room=2):
            count = self._take_run(tag, found)
            taken += count
            if count < len(found):
                break
        self._waited = 0
        self._wait = 0 if taken else min(2 * self._wait + 1, 64)

    def _take_run(self, tag: Tag, found: list[tuple[str, ...]]) -> int:
        """Take the first cases of what a pattern found; gives back how many."""
        found = found[: self._limits.rows - len(self.report.columns)]
        if not found:
            return 0
        wholes, *columns, children, texts, ends, _ = zip(*found, strict=True)
        count = len(found)
        verdicts: dict[int, _Verdict] = {}
        known = self._children
        for place, child in enumerate(children):
            if child:
                verdict = known.get((child, ends[place]))
                if verdict is None or "&" in texts[place] or "]" in texts[place]:
                    verdict = self._ordinary_verdict(child, texts[place], ends[place])
                    if verdict is None:
                        count = place
                        break
                verdicts[place] = verdict
        try:
            values = {name: self._values(raws[:count]) for name, raws in zip(tag.attributes, columns, strict=True)}
        except Damage:
            return 0
        if not self._add_run(values, verdicts, count):
            for place, of_case in enumerate(zip(*values.values(), strict=True)):
                spread: Values = [None, *(part for value in of_case for part in (value, None))]
                self._add(tag, spread, _Case(tag, spread, [verdicts[place]]) if place in verdicts else None)
        self._markup.take(sum(map(len, wholes[:count])))
        self._cases += count
        return count

    def _values(self, raws: Sequence[str]) -> Sequence[str]:
        """Values of an attribute from what lies between its quotes; raises `Damage`."""
        joined = "".join(raws)
        if "<" in joined:
            raise Damage("malformed")
        return raws if "&" not in joined and joined.isprintable() else [self._markup.value(raw) for raw in raws]

    def _add_run(self, values: Mapping[str, Sequence[str]], verdicts: dict[int, _Verdict], count: int) -> bool:
        """Add rows of ordinary cases; False, and nothing added, if one of them is not."""
        if not {"classname", "name", "time"} <= values.keys() or "status" in values or "result" in values:
            return False
        names = values["name"]
        joined = "".join(names)
        if any(verdict.teardown for verdict in verdicts.values()):
            return False
        if not joined.isprintable() or "\\" in joined or not all(map(str.strip, names)):
            return False
        labels = self._shared_labels(values["classname"])
        if None in labels:
            return False
        classnames = cast("list[str]", labels)
        file = self._containers[-1].file
        files = [own or file for own in self._shared_labels(values["file"])] if "file" in values else [file] * count
        row = len(self.report.columns)
        given = dict(zip(zip(classnames, names, files, strict=True), range(row, row + count), strict=True))
        if len(given) < count or not self._identities.first.keys().isdisjoint(given):
            return False
        self._identities.first.update(given)
        durations = list(map(self._times.get, values["time"]))
        if None in durations:
            durations = [self._times[time] if time in self._times else self._duration(time) for time in values["time"]]
        columns = self.report.columns
        columns.classname += classnames
        columns.name += names
        columns.file += files
        columns.duration_s += durations
        columns.outcome += ["passed"] * count
        columns.message += [None] * count
        columns.attempt += [0] * count
        self._suites += [self._containers[-1].number] * count
        for place, verdict in verdicts.items():
            columns.outcome[row + place], columns.message[row + place] = verdict.outcome, verdict.message
        return True

    def _shared_labels(self, raws: Sequence[str]) -> list[str | None]:
        labels = list(map(self._labels.get, raws))
        return labels if None not in labels else [self._label(raw) for raw in raws]

    def _ordinary_verdict(self, raw: str, text: str, end: str) -> _Verdict | None:
        """The verdict of an only child, from within its start tag, its text and end tag; None if it takes more care."""
        try:
            child = self._markup.ordinary_tag(raw)
            text = self._markup.unescaped(text)
        except Damage:
            return None
        if child is None or child[0].name not in _OUTCOMES or end != ("" if child[0].closed else child[0].qualified):
            return None
        verdict = self._verdict(*child, self._plain(text))
        depends_on_text = not child[0].closed and is_blank(_attribute(*child, "message"))
        if not depends_on_text and len(self._children) < _AT_MOST_CHILDREN and len(raw) < _AT_MOST_CHILD:
            self._children[raw, end] = verdict
        return verdict

    # --- containers -----------------------------------------------------------------------------------------------

    def _open_container(self, tag: Tag, values: Values) -> None:
        outer = self._containers[-1] if self._containers else None
        name = _attribute(tag, values, "name")
        label = self._label(name)
        file = self._label(_attribute(tag, values, "file"))
        self._numbers += 1
        self._containers.append(
            _Container(
                number=self._numbers,
                raw_name=name,
                label=label if label is not None else outer.label if outer else "",
                file=file if file is not None else outer.file if outer else None,
                tests=_attribute(tag, values, "tests"),
                cases_before=self._cases,
            )
        )
        if self.report.timestamp_ns is None:
            self.report.timestamp_ns = parse_timestamp(_attribute(tag, values, "timestamp"))

    def _close_container(self) -> None:
        container = self._containers.pop()
        tests = container.tests
        if tests and tests.isascii() and tests.isdigit():
            digits = tests.lstrip("0") or "0"
            if len(digits) > 18 or int(digits) > self._cases - container.cases_before:
                self._warnings.add("count_mismatch")

    # --- cases ----------------------------------------------------------------------------------------------------

    def _judge(self, case: _Case, tag: Tag, values: Values, text: str) -> None:
        """Take an outcome or rerun element into its case."""
        verdict = self._verdict(tag, values, text)
        if tag.name in _OUTCOMES:
            case.verdicts.append(verdict)
        else:
            case.reruns.append(verdict)

    def _verdict(self, tag: Tag, values: Values, text: str) -> _Verdict:
        """What an outcome or rerun element says."""
        element = tag.name
        attribute = _attribute(tag, values, "message")
        said = None if attribute is None else self._plain(attribute)
        message = first_line(text) if is_blank(said) else said
        kind = _attribute(tag, values, "type")
        if element in _RERUNS:
            time = _attribute(tag, values, "time")
            duration_s = None if time is None else self._duration(time)
            return _Verdict(refined(_RERUNS[element], message, kind), message, duration_s)
        if element != "skipped":
            teardown = element == "error" and said is not None and _TEARDOWN.match(said) is not None
            return _Verdict(refined(_OUTCOMES[element], message, kind), message, teardown=teardown)
        if kind in ("pytest.xfail", "XFAIL"):
            return _Verdict("xfailed", message)
        return _Verdict("xpassed" if said == _XPASSED else "skipped", message)

    def _add(self, tag: Tag, values: Values, case: _Case | None = None) -> None:
        """Make rows of a test case that is closed."""
        classname_at, name_at, file_at, time_at, status_at, result_at = tag.places
        container = self._containers[-1]
        name = values[name_at]
        if name is None or not name.strip(SPACE):
            name = "(unnamed)"
            self._warnings.add("missing_name")
        elif not name.isprintable() or "\\" in name:
            name = self._escaped(name)
        classname = self._label(values[classname_at])
        if classname is None:
            classname = self._target
            if classname is None:
                classname = container.label
                self._warnings.add("missing_classname")
        file = self._label(values[file_at]) or container.file
        time = values[time_at]
        duration_s = self._times[time] if time in self._times else self._duration(time)
        outcome: Outcome = "passed"
        message = None
        if case is not None and case.verdicts:
            outcome = worst(verdict.outcome for verdict in case.verdicts)
            message = next(verdict.message for verdict in case.verdicts if verdict.outcome == outcome)
            if any(verdict.outcome != outcome for verdict in case.verdicts):
                self._warnings.add("multiple_outcomes")
        elif values[status_at] is not None or values[result_at] is not None:
            outcome = self._outcome_of_attributes(values[status_at], values[result_at])
        identity = (classname, name, file)
        columns = self.report.columns
        attempt = 0
        if case is not None:
            torn_down = len(case.verdicts) == 1 and case.verdicts[0].teardown
            if torn_down and self._merge(identity, case, outcome, message, duration_s):
                return
            attempt = len(case.reruns)
        row = len(columns.name) + attempt
        if row >= self._limits.rows:
            raise Damage("x_too_many_rows")
        given = self._identities.give(identity, row)
        if given is not name:
            self._warnings.add("duplicate_identity")
        if case is not None:
            for number, rerun in enumerate(case.reruns):
                self._append(classname, given, file, rerun.outcome, rerun.duration_s, rerun.message, number)
            if case.properties:
                self._properties[row] = tuple(case.properties)
        self._append(classname, given, file, outcome, duration_s, message, attempt)

    def _append(
        self, classname: str, name: str, file: str | None, outcome: Outcome, duration_s: float | None, message: str | None,
        attempt: int,
    ) -> None:  # fmt: skip
        columns = self.report.columns
        columns.classname.append(classname)
        columns.name.append(name)
        columns.file.append(file)
        columns.outcome.append(outcome)
        columns.duration_s.append(duration_s)
        columns.message.append(message)
        columns.attempt.append(attempt)
        self._suites.append(self._containers[-1].number)

    def _merge(
        self, identity: Identity, case: _Case, outcome: Outcome, message: str | None, duration_s: float | None
    ) -> bool:
        """Merge a failed teardown into the case that it belongs to; False if there is none."""
        suite = self._containers[-1].number
        row = next((row for row in self._identities.places(identity) if self._suites[row] == suite), None)
        if row is None or row in self._merged:
            return False
        self._merged.add(row)
        self._warnings.add("merged_teardown_error")
        columns = self.report.columns
        if SEVERITY[outcome] < SEVERITY[columns.outcome[row]]:
            columns.outcome[row], columns.message[row] = outcome, message
        durations = [seconds for seconds in (columns.duration_s[row], duration_s) if seconds is not None]
        columns.duration_s[row] = sum(durations) if durations else None
        if case.properties:
            self._properties[row] = (*self._properties.get(row, ()), *case.properties)
        classname, name, file = columns.classname[row], columns.name[row], columns.file[row]
        for rerun in case.reruns:
            self._append(classname, name, file, rerun.outcome, rerun.duration_s, rerun.message, columns.attempt[row])
            columns.attempt[row] += 1
        return True

    def _outcome_of_attributes(self, status: str | None, result: str | None) -> Outcome:
        """The outcome of a case without outcome elements."""
        status, result = (status or "").lower(), (result or "").lower()
        outcomes: list[Outcome] = ["not_run"] if status == "notrun" else []
        outcomes += [_OF_ATTRIBUTE[value] for value in (status, result) if value in _OF_ATTRIBUTE]
        outcome = worst(["passed", *outcomes])
        if outcome in ("failed", "error"):
            self._warnings.add("status_attribute_only")
        return outcome

    def _duration(self, time: str | None) -> float | None:
        """The seconds of a `time` attribute."""
        seconds, warning = parse_duration(time)
        if warning is not None:
            self._warnings.add(warning)
        if len(self._times) < _AT_MOST_TIMES:
            self._times[time] = seconds
        return seconds

    def _label(self, raw: str | None) -> str | None:
        """An identity field that many cases share, None for a blank one; equal ones are one object."""
        try:
            return self._labels[raw]
        except KeyError:
            label = None if raw is None or is_blank(raw) else self._escaped(raw)
            return self._labels.setdefault(raw, label)

    def _escaped(self, raw: str) -> str:
        shown = escaped(raw)
        if shown != raw:
            self._warnings.add("name_escaped")
        return shown

    def _plain(self, text: str) -> str:
        return plain(text) if "invalid_char" in self._warnings else text

    def finish(self) -> ColumnReport:
        """The report, with the columns that few rows fill."""
        columns = self.report.columns
        count = len(columns)
        columns.properties = [()] * count
        for row, properties in self._properties.items():
            columns.properties[row] = properties
        columns.cached = [False] * count
        columns.target = [self._target] * count
        return self.report


def _run_pattern(attributes: Iterable[str]) -> re.Pattern[str]:
    """Matches a case with these attributes and at most one child, which holds at most text.

    Groups: the whole, each attribute, what is in the child's start tag, its text, its end tag, all that is no such case.
    """
    values = "".join(f' {re.escape(attribute)}="([^"]*)"' for attribute in attributes)
    space = "[ \\n\\t]*"
    child = f"{space}<([^>]*)>(?:([^<]*)</([^>]*)>)?{space}"
    return re.compile(f"({space}<testcase{values} ?(?:/>|>(?:{child})?</testcase>))|((?s:.+))")


def _attribute(tag: Tag, values: Values, name: str) -> str | None:
    return values[tag.index.get(name, -1)]


def parse_timestamp(text: str | None) -> int | None:
    """Nanoseconds since 1970 of an ISO 8601 time, UTC where it has no offset; None for anything else."""
    match = _TIMESTAMP.fullmatch((text or "").strip(SPACE))
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, _, sign, offset_hours, offset_minutes = match.groups()
    try:
        moment = datetime(int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0))
        offset = timedelta(hours=int(offset_hours or 0), minutes=int(offset_minutes or 0))
        seconds = (moment - _EPOCH - (-offset if sign == "-" else offset)) // timedelta(seconds=1)
    except (ValueError, OverflowError):
        return None
    return seconds * 10**9 + int((fraction or "0")[:9].ljust(9, "0"))
