"""Bazel's Build Event Protocol to rows: the status of targets, and the cases of each `test.xml`.

Here belong events, attempts, and the place of a `test.xml`. Only files below the folder `testlogs` beside the events are
read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from accel_ci.model import Outcome

from .detect import read_as, read_chunks_of
from .identities import Identities, Identity
from .json_lines import Object, object_of, objects_of
from .junit.read import read_junit
from .report import SEVERITY, ReadLimits, Report, ReportProperties, Row
from .text import escaped, is_blank, plain
from .warning_codes import WarningCode

_OUTCOMES: dict[str, Outcome] = {
    "PASSED": "passed", "FLAKY": "passed", "FAILED": "failed", "TIMEOUT": "timeout", "INCOMPLETE": "error",
    "REMOTE_FAILURE": "error", "FAILED_TO_BUILD": "error",
}  # fmt: skip
_SECONDS = re.compile(r"[0-9]{1,15}(?:\.[0-9]+)?(?=s\Z)")
_DIGITS = re.compile(r"[0-9]{1,15}")

_ResultId = tuple[int, int, int]
"""Run, shard, attempt."""


@dataclass
class _Target:
    """All events of a label."""

    label: str
    is_test: bool = False
    results: dict[_ResultId, Object] = field(default_factory=dict)
    summary: Object | None = None
    succeeded: bool = False
    failed: Object | None = None  # payload of a completion without success
    aborted: Object | None = None


def read_bep(
    events: Iterable[Object], warnings: set[WarningCode], limits: ReadLimits, testlogs: Path | None = None
) -> Report:
    """Read a stream of build events; never raises.

    Args:
        events: The objects of its lines.
        warnings: The set to add codes to.
        limits: Those of the report, and of each `test.xml`.
        testlogs: The local copy of `bazel-testlogs`, if there is one.
    """
    targets: dict[str, _Target] = {}
    complete = False
    for event in events:
        complete |= event.get("lastMessage") is True
        _take(targets, event)
    report = Report(warnings=warnings)
    for target in targets.values():
        if target.is_test:
            reader = _TargetReader(target, warnings, limits, testlogs)
            for row in reader.rows():
                report.columns.append(row)
            report.properties += reader.properties
            if reader.incomplete:
                report.status = "salvaged"
        if len(report.columns) > limits.rows:
            warnings.add("x_too_many_rows")
            break
    if not complete:
        warnings.add("bep_incomplete")
    return report


def _take(targets: dict[str, _Target], event: Object) -> None:
    """Add one event to its target."""
    for kind, its_id in object_of(event, "id").items():
        label = object_of(its_id).get("label")
        if not isinstance(label, str) or is_blank(label):
            continue
        target = targets.setdefault(label, _Target(label))
        if kind == "testResult":
            target.is_test = True
            if "aborted" not in event:
                run, shard, attempt = (number_of(its_id.get(name)) or 1 for name in ("run", "shard", "attempt"))
                target.results[run, shard, attempt] = object_of(event, kind)
        elif kind == "testSummary":
            target.is_test = True
            if "aborted" not in event:
                target.summary = object_of(event, kind)
        elif kind == "targetConfigured":
            target.is_test |= is_test_target(event)
        elif kind == "targetCompleted" and "completed" in event:
            completed = object_of(event, "completed")
            if completed.get("success") is True:
                target.succeeded = True
            else:
                target.failed = completed
        if "aborted" in event and kind in ("targetCompleted", "testResult", "testSummary"):
            target.aborted = object_of(event, "aborted")


class _TargetReader:
    """Makes the rows of one label."""

    def __init__(self, target: _Target, warnings: set[WarningCode], limits: ReadLimits, testlogs: Path | None) -> None:
        self.incomplete = False  # a test.xml was not read to its end
        self.properties: ReportProperties = []
        self._target, self._warnings, self._limits, self._testlogs = target, warnings, limits, testlogs
        summary = target.summary or {}
        self._shards = max([number_of(summary.get("shardCount")) or 1, *(shard for _, shard, _ in target.results)])
        self._runs = max([number_of(summary.get("runCount")) or 1, *(run for run, _, _ in target.results)])
        self._last: dict[tuple[int, int], int] = {}  # by run and shard: the final attempt
        for run, shard, attempt in target.results:
            self._last[run, shard] = max(attempt, self._last.get((run, shard), 0))
        self._label = escaped(target.label)

    def rows(self) -> Iterator[Row]:
        """All rows of the label."""
        target = self._target
        if self._label != target.label:
            self._warnings.add("name_escaped")
        if not target.results:
            yield self._row_without_result()
            return
        final: list[Row] = []
        given: dict[tuple[int, int], Identities] = {}
        for run, shard, attempt in sorted(target.results):
            rows = self._attempt(run, shard, attempt, given.setdefault((run, attempt), Identities()))
            if attempt == self._last[run, shard]:
                final += rows
            else:
                yield from rows
        yield from self._with_summary(final)

    def _row_without_result(self) -> Row:
        target = self._target
        if target.summary is not None:
            status = _status(target.summary.get("overallStatus"))
            return self._row(_outcome(status), status)
        if target.failed is not None and not target.succeeded:
            self._warnings.add("target_failed_to_build")
            message = object_of(target.failed, "failureDetail").get("message")
            return self._row("error", _text(message) or "FAILED_TO_BUILD")
        if target.aborted is not None and not target.succeeded:
            self._warnings.add("target_aborted")
            message = _text(target.aborted.get("description")) or _status(target.aborted.get("reason"), "aborted")
            return self._row("not_run", message)
        self._warnings.add("target_missing_result")
        return self._row("not_run", None)

    def _with_summary(self, rows: list[Row]) -> list[Row]:
        """The rows of final attempts, and one for the whole target where its summary is worse."""
        status = _status((self._target.summary or {}).get("overallStatus"))
        outcome = _outcome(status)
        if status == "NO_STATUS" or not _is_worse(outcome, rows):
            return rows
        attempt = max(self._last.values()) - 1
        return self._overridden(rows, self._row(outcome, status, attempt=attempt))

    def _attempt(self, run: int, shard: int, attempt: int, given: Identities) -> list[Row]:
        """The rows of one `testResult`."""
        result = self._target.results[run, shard, attempt]
        status = _status(result.get("status"))
        outcome = _outcome(status)
        own = self._row(outcome, status, run=run, shard=shard, attempt=attempt - 1)
        rows = list(self._xml_rows(run, shard, attempt, given))
        if not rows:
            rows = [self._with_duration(own, result)]
        elif _is_worse(outcome, rows):
            rows = self._overridden(rows, own, result)
        elif outcome == "passed" and any(SEVERITY[row.outcome] <= SEVERITY["failed"] for row in rows):
            self._warnings.add("bep_xml_disagree")
        if is_cached(result):
            rows = [replace(row, cached=True) for row in rows]
        return rows

    def _overridden(self, rows: list[Row], own: Row, result: Object | None = None) -> list[Row]:
        """Add Bazel's status to rows that are all better than it."""
        self._warnings.add("bep_overrides_xml")
        for place, row in reversed(list(enumerate(rows))):
            if (row.classname, row.name, row.file) == (own.classname, own.name, own.file):
                return [*rows[:place], replace(row, outcome=own.outcome), *rows[place + 1 :]]
        return [*rows, own if result is None else self._with_duration(own, result)]

    def _row(
        self, outcome: Outcome, message: str | None, *, run: int | None = None, shard: int | None = None, attempt: int = 0
    ) -> Row:
        """A row for the target itself, without a duration."""
        package, name = _package_and_name(self._label)
        shown = f"{package}/{name}" if package else name
        if shard is not None and self._shards > 1:
            shown += f"_shard_{shard}/{self._shards}"
        message = None if outcome == "passed" else message
        return Row(self._label, shown + self._run_suffix(run), None, outcome, None, message, attempt, target=self._label)

    def _run_suffix(self, run: int | None) -> str:
        return f" [run {run}]" if run is not None and self._runs > 1 else ""

    def _with_duration(self, row: Row, result: Object) -> Row:
        seconds = _seconds(result)
        if seconds is None:
            self._warnings.add("duration_missing")
        return replace(row, duration_s=seconds)

    # --- test.xml -------------------------------------------------------------------------------------------------

    def _xml_rows(self, run: int, shard: int, attempt: int, given: Identities) -> Iterator[Row]:
        path = self._xml_path(run, shard, attempt)
        report = None if path is None else self._read_xml(path)
        if report is None:
            self._warnings.add("test_xml_missing")
            return
        self._warnings |= report.warnings
        self.incomplete |= report.status != "complete"
        self.properties += report.properties
        names: dict[Identity, str] = {}
        for row in report.columns.rows():
            identity = (row.classname, row.name, row.file)
            if identity not in names:
                names[identity] = given.give(identity, 0)
                if names[identity] != row.name:
                    self._warnings.add("duplicate_identity")
            name = names[identity] + self._run_suffix(run)
            yield replace(row, name=name, attempt=row.attempt + attempt - 1)

    def _read_xml(self, path: Path) -> Report | None:
        try:
            readers = {"<": lambda characters: read_junit(characters, self._limits, self._label)}
            return read_as(readers, read_chunks_of(path), self._limits)
        except OSError:
            return None

    def _xml_path(self, run: int, shard: int, attempt: int) -> Path | None:
        """The local copy of an attempt's `test.xml`, if it lists one."""
        outputs = objects_of(self._target.results[run, shard, attempt].get("testActionOutput"))
        uris = [output.get("uri") for output in outputs if output.get("name") == "test.xml"]
        if self._testlogs is None or not uris:
            return None
        uri = uris[0] if isinstance(uris[0], str) else ""
        if uri.startswith("file:"):
            below = below_testlogs(uri)
            return below_folder(self._testlogs, below) if below is not None else None
        package, name = _package_and_name(self._target.label)
        parts = []
        if self._shards > 1:
            parts.append(f"shard_{shard}_of_{self._shards}")
        if self._runs > 1:
            parts.append(f"run_{run}_of_{self._runs}")
        is_last = attempt == self._last[run, shard]
        leaf = "test.xml" if is_last else f"test_attempts/attempt_{attempt}.xml"
        return below_folder(self._testlogs, "/".join(filter(None, [package, name, "_".join(parts), leaf])))


def is_test_target(event: Object) -> bool:
    """True if a `targetConfigured` event is of a test."""
    configured = object_of(event, "configured")
    return "testSize" in configured or str(configured.get("targetKind")).endswith("_test rule")


def is_cached(result: Object) -> bool:
    """True if the payload of a `testResult` comes from a cache."""
    return result.get("cachedLocally") is True or object_of(result, "executionInfo").get("cachedRemotely") is True


def below_testlogs(uri: str) -> str | None:
    """The path of a file below Bazel's `testlogs` from its URI; None for a URI that is not below it."""
    _, found, below = unquote(uri).replace("/bazel-testlogs/", "/testlogs/").rpartition("/testlogs/")
    return below if found and uri.startswith("file:") else None


def below_folder(folder: Path, relative: str) -> Path | None:
    """The file at a path below a folder; None if it is missing, or outside the folder."""
    try:
        path = (folder / relative.lstrip("/")).resolve()
        inside = path.is_relative_to(folder.resolve())
        return path if inside and path.is_file() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _package_and_name(label: str) -> tuple[str, str]:
    """`//a/b:c` is (`a/b`, `c`), `//a/b` is (`a/b`, `b`)."""
    package, colon, name = label.split("//", 1)[-1].partition(":")
    return package, name if colon else package.rpartition("/")[2]


def _outcome(status: str) -> Outcome:
    return _OUTCOMES.get(status, "not_run")


def _status(value: object, default: str = "NO_STATUS") -> str:
    return plain(value) if isinstance(value, str) and value else default


def _text(message: object) -> str | None:
    return plain(message) if isinstance(message, str) and not is_blank(message) else None


def _is_worse(outcome: Outcome, rows: list[Row]) -> bool:
    return all(SEVERITY[outcome] < SEVERITY[row.outcome] for row in rows)


def _seconds(result: Object) -> float | None:
    written = result.get("testAttemptDuration")
    if isinstance(written, str) and (match := _SECONDS.match(written)):
        return float(match[0])
    millis = result.get("testAttemptDurationMillis")
    if isinstance(millis, float) and 0 <= millis < math.inf:
        return millis / 1000
    number = number_of(millis)
    return None if number is None else number / 1000


def number_of(value: object) -> int | None:
    """A 64-bit number of proto3 JSON, which may be a string; None for any other value."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15:
        return value
    if isinstance(value, float) and value.is_integer() and 0 <= value < 10**15:
        return int(value)
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else None
