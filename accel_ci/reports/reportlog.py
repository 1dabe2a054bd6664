"""pytest-reportlog to rows: joins the phases of an execution, and separates the executions of one test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from accel_ci.model import Outcome

from .identities import Identities, Identity
from .json_lines import Object
from .outcomes import refined, worst
from .report import Properties, ReadLimits, Report, Row
from .text import escaped, first_line, is_blank, plain
from .times import duration_of
from .warning_codes import WarningCode

_Key = tuple[str, str | None]


@dataclass
class _Execution:
    """The records of one execution of a test. `rerun`: one of them announces another execution."""

    identity: Identity
    attempt: int = 0
    records: list[tuple[Outcome, str | None]] = field(default_factory=list)
    duration_s: float | None = None
    properties: Properties = ()
    rerun: bool = False
    needs_duration: bool = True
    ended: bool = False


class _Reader:
    def __init__(self, warnings: set[WarningCode]) -> None:
        self._warnings = warnings
        self._identities = Identities()
        self._executions: list[_Execution] = []
        self._open: dict[_Key, _Execution] = {}
        self._rerun: dict[_Key, _Execution] = {}  # by key: the last execution, if it announced a rerun
        self._finished = False

    def read(self, records: Iterable[Object], limits: ReadLimits) -> None:
        for record in records:
            kind = record.get("$report_type")
            if kind == "TestReport":
                self._take(record)
            elif kind == "CollectReport" and record.get("outcome") == "failed":
                execution = _Execution(self._identity(_text(record.get("nodeid"))), needs_duration=False, ended=True)
                execution.records.append(("error", _message(record, "failed")))
                self._executions.append(execution)
            elif kind == "SessionFinish":
                self._finished = True
            if len(self._executions) >= limits.rows:
                self._warnings.add("x_too_many_rows")
                break

    def _take(self, record: Object) -> None:
        node, when = _text(record.get("nodeid")), record.get("when")
        worker = record.get("worker_id")
        key = (node, worker if isinstance(worker, str) else None)
        if when == "???":
            key = next((open_key for open_key in reversed(self._open) if open_key[0] == node), key)
        execution = self._open.get(key)
        if execution is not None and when == "setup" and execution.rerun:
            self._close(key)
            execution = None
        if execution is None:
            execution = self._open[key] = self._begin(key)
            self._executions.append(execution)
        recorded = record.get("outcome")
        outcome = _outcome(record)
        message = _message(record, outcome)
        if recorded in ("failed", "rerun"):
            outcome = refined(outcome, message)
        execution.records.append((outcome, message))
        execution.rerun |= recorded == "rerun"
        seconds, warning = duration_of(record.get("duration"))
        if warning is not None:
            self._warnings.add(warning)
        if seconds is not None:
            execution.duration_s = (execution.duration_s or 0.0) + seconds
        execution.properties = _properties(record.get("user_properties")) or execution.properties
        if when in ("teardown", "???"):
            self._close(key)

    def _begin(self, key: _Key) -> _Execution:
        earlier = self._rerun.pop(key, None)
        if earlier is not None:
            return _Execution(earlier.identity, earlier.attempt + 1)
        return _Execution(self._identity(key[0]))

    def _close(self, key: _Key) -> None:
        execution = self._open.pop(key)
        execution.ended = True
        if execution.rerun:
            self._rerun[key] = execution

    def _identity(self, node: str) -> Identity:
        """Class name, name and file of a node id, as pytest's JUnit writer has them, unique in the report."""
        classname, name, file = split_node_id(node)
        if is_blank(name):
            name = "(unnamed)"
            self._warnings.add("missing_name")
        if is_blank(classname):
            classname = "pytest"
            self._warnings.add("missing_classname")
        shown = escaped(classname), escaped(name), None if is_blank(file) else escaped(file)
        if shown[:2] != (classname, name) or (shown[2] or file) != file:
            self._warnings.add("name_escaped")
        numbered = self._identities.give(shown, 0)
        if numbered != shown[1]:
            self._warnings.add("duplicate_identity")
        return shown[0], numbered, shown[2]

    def report(self) -> Report:
        report = Report(warnings=self._warnings)
        for execution in self._executions:
            report.columns.append(self._row(execution))
        if not self._finished:
            self._warnings.add("reportlog_incomplete")
        return report

    def _row(self, execution: _Execution) -> Row:
        if execution.duration_s is None and execution.needs_duration:
            self._warnings.add("duration_missing")
        if execution.ended or self._finished:
            outcome = worst(outcome for outcome, _ in execution.records)
            message = next(message for one, message in execution.records if one == outcome)
        else:
            outcome, message = "crashed", "no teardown record"
        classname, name, file = execution.identity
        return Row(
            classname, name, file, outcome, execution.duration_s, None if outcome == "passed" else message,
            execution.attempt, execution.properties,
        )  # fmt: skip


def read_reportlog(records: Iterable[Object], warnings: set[WarningCode], limits: ReadLimits) -> Report:
    """Read the objects of a pytest-reportlog; never raises."""
    reader = _Reader(warnings)
    reader.read(records, limits)
    return reader.report()


def split_node_id(node: str) -> tuple[str, str, str]:
    """Split a pytest node id into class name, name and file: `a/b.py::T::t[x]` is `a.b.T`, `t[x]`, `a/b.py`."""
    front, bracket, parameters = node.partition("[")
    file, *middle = front.split("::")
    dotted = file.replace("/", ".").removesuffix(".py")
    *classes, name = [dotted, *middle]
    return ".".join(classes), name + bracket + parameters, file


def _outcome(record: Object) -> Outcome:
    """The outcome of one record, before its message refines it."""
    recorded, call = record.get("outcome"), record.get("when") == "call"
    expected = record.get("wasxfail") is not None
    if recorded == "passed":
        return "xpassed" if expected and call else "passed"
    if recorded == "skipped":
        return "xfailed" if expected else "skipped"
    return "failed" if call else "error"


def _message(record: Object, outcome: str) -> str | None:
    if outcome == "passed":
        return None
    if record.get("wasxfail") is not None:
        message = _text(record["wasxfail"]).removeprefix("reason: ")
    else:
        message = _text_of_representation(record.get("longrepr"))
    message = plain(message)
    return None if is_blank(message) else message


def _text_of_representation(representation: object) -> str:
    if isinstance(representation, dict):
        crash = representation.get("reprcrash")
        return _text(crash.get("message")) if isinstance(crash, dict) else ""
    if isinstance(representation, list):
        return _text(representation[-1]).removeprefix("Skipped: ") if representation else ""
    return first_line(_text(representation)) or ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _properties(value: object) -> Properties:
    """User properties as pairs of texts; anything but a pair is kept as a value without a name."""
    if not isinstance(value, list):
        return ()
    pairs = [entry if isinstance(entry, list) and len(entry) == 2 else ["", entry] for entry in value]
    return tuple((plain(_shown(name)), plain(_shown(entry))) for name, entry in pairs)


def _shown(value: object) -> str:
    return json.dumps(value) if isinstance(value, (list, dict)) else str(value)
