"""pytest-reportlog to rows: joins the phases of an execution, and separates the executions of one test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from accel_ci.model import Outcome

from .fields import Fields
from .identities import Identities, Identity
from .json_lines import Object, object_of
from .outcomes import refined
from .report import SEVERITY, Properties, ReadLimits, Report, Row
from .text import first_line, message_of, plain
from .times import duration_of
from .warning_codes import WarningCode

_Key = tuple[str, str | None]
_RETRIED = ("rerun", "retried")  # by pytest-rerunfailures, and by pytest-retry, which goes on without another set-up
_GOOD_STATUSES = (0, 5)  # 5: no test was collected
_SUBTEST = "SubTestReport"  # pytest 9 writes it in `_report_type`


@dataclass
class _Execution:
    """One execution of a test: the worst of its records. `rerun`: one of them announces another execution."""

    identity: Identity
    attempt: int = 0
    outcome: Outcome = "passed"
    message: str | None = None
    duration_s: float | None = None
    properties: Properties = ()
    rerun: bool = False
    needs_duration: bool = True

    @property
    def explains_failure(self) -> bool:
        """True if pytest fails because of it."""
        return not self.rerun and SEVERITY[self.outcome] <= SEVERITY["failed"]


class _Reader:
    def __init__(self, warnings: set[WarningCode]) -> None:
        self._warnings, self._fields = warnings, Fields(warnings)
        self._identities = Identities()
        self._executions: list[_Execution] = []
        self._open: dict[_Key, _Execution] = {}
        self._rerun: dict[_Key, _Execution] = {}  # by key: the last execution, if it announced a rerun
        self._finished = False
        self._failed = False  # by pytest's exit status

    def read(self, records: Iterable[Object], limits: ReadLimits) -> None:
        for record in records:
            kind = record.get("$report_type")
            if _SUBTEST in (kind, record.get("_report_type")):
                if record.get("outcome") == "failed":
                    self._take(record, subtest=True)
            elif kind == "TestReport":
                self._take(record)
            elif kind == "CollectReport" and record.get("outcome") == "failed":
                identity, message = self._identity(_text(record.get("nodeid"))), _message(record)
                self._executions.append(_Execution(identity, outcome="error", message=message, needs_duration=False))
            elif kind == "SessionFinish":
                self._finished = True
                self._failed |= record.get("exitstatus") not in (None, *_GOOD_STATUSES)
            if len(self._executions) >= limits.rows:
                self._warnings.add("x_too_many_rows")
                break

    def _take(self, record: Object, *, subtest: bool = False) -> None:
        """Add a record to the execution of its test; the duration of a subtest is part of its test's."""
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
            earlier = self._rerun.pop(key, None)
            execution = _Execution(earlier.identity, earlier.attempt + 1) if earlier else _Execution(self._identity(node))
            self._open[key] = execution
            self._executions.append(execution)
        recorded, outcome, message = record.get("outcome"), _outcome(record), _message(record)
        if recorded in ("failed", *_RETRIED):
            outcome = refined(outcome, message)
        if SEVERITY[outcome] < SEVERITY[execution.outcome]:
            execution.outcome, execution.message = outcome, message
        execution.properties = _properties(record.get("user_properties")) or execution.properties
        if subtest:
            return
        execution.rerun |= recorded in _RETRIED
        seconds = duration_of(record.get("duration"), self._warnings)
        if seconds is not None:
            execution.duration_s = (execution.duration_s or 0.0) + seconds
        if when in ("teardown", "???") or recorded == "retried":
            self._close(key)

    def _close(self, key: _Key) -> None:
        execution = self._open.pop(key)
        if execution.rerun:
            self._rerun[key] = execution

    def _identity(self, node: str) -> Identity:
        """Class name, name and file of a node id, unique in the report."""
        classname, name, file = self._fields.of_node(node)
        if classname is None:
            classname = "pytest"
            self._warnings.add("missing_classname")
        numbered = self._identities.give((classname, name, file), 0)
        if numbered != name:
            self._warnings.add("duplicate_identity")
        return classname, numbered, file

    def report(self) -> Report:
        report = Report(warnings=self._warnings)
        if not self._finished:
            self._warnings.add("reportlog_incomplete")
            for execution in self._open.values():
                execution.outcome, execution.message = "crashed", "no teardown record"
        if self._failed and not any(execution.explains_failure for execution in self._executions):
            self._warnings.add("x_session_failed")
        for execution in self._executions:
            if execution.duration_s is None and execution.needs_duration:
                self._warnings.add("duration_missing")
            row = Row(
                *execution.identity, execution.outcome, execution.duration_s, execution.message, execution.attempt,
                execution.properties,
            )  # fmt: skip
            report.columns.append(row)
        return report


def read_reportlog(records: Iterable[Object], warnings: set[WarningCode], limits: ReadLimits) -> Report:
    """Read the objects of a pytest-reportlog; never raises."""
    reader = _Reader(warnings)
    reader.read(records, limits)
    return reader.report()


def _outcome(record: Object) -> Outcome:
    """The outcome of one record, before its message refines it."""
    recorded, call = record.get("outcome"), record.get("when") == "call"
    expected = record.get("wasxfail") is not None
    if recorded == "passed":
        return "xpassed" if expected and call else "passed"
    if recorded == "skipped":
        return "xfailed" if expected else "skipped"
    return "failed" if call else "error"


def _message(record: Object) -> str | None:
    if record.get("wasxfail") is not None:
        return message_of(_text(record["wasxfail"]).removeprefix("reason: "))
    representation = record.get("longrepr")
    if isinstance(representation, dict):
        return message_of(object_of(representation, "reprcrash").get("message"))
    if isinstance(representation, list):
        return message_of(_text(representation[-1]).removeprefix("Skipped: ")) if representation else None
    return message_of(first_line(_text(representation)))


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
