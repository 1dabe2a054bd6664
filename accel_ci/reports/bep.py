"""Bazel's Build Event Protocol to rows: the status of targets, and the cases of each `test.xml`.

Here belong events, configurations, attempts, and the place of a `test.xml`. Only files below `testlogs` are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from accel_ci.model import Outcome

from .detect import read_as, read_chunks_of
from .fields import Fields
from .identities import Identities, Identity
from .json_lines import Object, object_of, objects_of
from .junit.read import read_junit
from .report import SEVERITY, ReadLimits, Report, Row
from .text import is_blank, message_of, plain
from .warning_codes import WarningCode

_OUTCOMES: dict[str, Outcome] = {
    "PASSED": "passed", "FLAKY": "passed", "FAILED": "failed", "TIMEOUT": "timeout", "INCOMPLETE": "error",
    "REMOTE_FAILURE": "error", "FAILED_TO_BUILD": "error",
}  # fmt: skip
_SECONDS = re.compile(r"[0-9]{1,15}(?:\.[0-9]+)?(?=s\Z)")
_DIGITS = re.compile(r"[0-9]{1,15}")
_LOST = ("LOADING_FAILURE", "ANALYSIS_FAILURE")
_KINDS = ("targetConfigured", "targetCompleted", "testResult", "testSummary")

_ResultId = tuple[int, int, int]  # run, shard, attempt


@dataclass(frozen=True)
class Target:
    """The payloads of a label in one configuration: its results, and `summary`, `succeeded`, `failed`, `aborted`."""

    results: dict[_ResultId, Object] = field(default_factory=dict)
    facts: dict[str, Object] = field(default_factory=dict)


@dataclass
class BuildEvents:
    """The events of all labels. `targets` are by label and configuration, an empty one for events without any.

    `kinds` are the labels whose kind is known, `lost` those (and patterns) that could not be loaded or analysed.
    """

    targets: dict[str, dict[str, Target]] = field(default_factory=dict)
    tests: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    exit_code: int = 0
    mnemonics: dict[str, str] = field(default_factory=dict)
    complete: bool = False


def read_bep(
    events: Iterable[Object], warnings: set[WarningCode], limits: ReadLimits, testlogs: Path | None = None
) -> Report:
    """Read a stream of build events; never raises. `testlogs` is the local copy of `bazel-testlogs`, if there is one."""
    build = BuildEvents()
    for event in events:
        take(build, event)
    report, fields = Report(warnings=warnings), Fields(warnings)
    for label, targets in build.targets.items():
        configured = by_configuration(targets) if label in build.tests else {}
        for suffix, target in zip(_suffixes(configured, build.mnemonics), configured.values(), strict=True):
            suffix = fields.escaped(suffix)
            for row in _TargetReader(fields.escaped(label), target, report, limits, testlogs).rows():
                report.columns.append(replace(row, name=row.name + suffix))
        if len(report.columns) > limits.rows:
            warnings.add("x_too_many_rows")
            break
    if not build.complete:
        warnings.add("bep_incomplete")
    unexplained = build.exit_code and not any(SEVERITY[outcome] <= SEVERITY["not_run"] for outcome in report.columns.outcome)
    if unexplained or build.lost - build.kinds:
        warnings.add("x_build_failed")
    return report


def take(build: BuildEvents, event: Object) -> None:
    """Add one event to its target."""
    build.complete |= event.get("lastMessage") is True
    build.exit_code = number_of(object_of(event, "finished", "exitCode").get("code")) or build.exit_code
    for kind, its_id in object_of(event, "id").items():
        if object_of(event, "aborted").get("reason") in _LOST:
            build.lost.add(str(object_of(its_id).get("label")))
        label, mnemonic = object_of(its_id).get("label"), object_of(event, kind).get("mnemonic")
        if kind == "configuration" and isinstance(mnemonic, str) and not is_blank(mnemonic):
            build.mnemonics[configuration_of(event["id"])] = mnemonic
        if not isinstance(label, str) or is_blank(label) or kind not in _KINDS:
            continue
        targets = build.targets.setdefault(label, {})
        configured = object_of(event, "configured")
        is_test = "testSize" in configured or str(configured.get("targetKind")).endswith("_test rule")
        if is_test or kind in ("testResult", "testSummary"):
            build.tests.add(label)
        if is_test or "targetKind" in configured:
            build.kinds.add(label)
        if kind == "targetConfigured":
            continue
        target = targets.setdefault(configuration_of(its_id), Target())
        if "aborted" in event:
            target.facts["aborted"] = object_of(event, "aborted")
        elif kind == "testResult":
            run, shard, attempt = (number_of(its_id.get(name)) or 1 for name in ("run", "shard", "attempt"))
            target.results[run, shard, attempt] = object_of(event, kind)
        elif kind == "testSummary":
            target.facts["summary"] = object_of(event, kind)
        elif "completed" in event:
            completed = object_of(event, "completed")
            target.facts["succeeded" if completed.get("success") is True else "failed"] = completed


def by_configuration(targets: Mapping[str, Target]) -> dict[str, Target]:
    """The target of a label for each configuration; events without one count for all."""
    common = targets.get("", Target())
    own = {configuration: target for configuration, target in targets.items() if configuration} or {"": Target()}
    return {
        configuration: Target(common.results | target.results, common.facts | target.facts)
        for configuration, target in own.items()
    }


def _suffixes(configurations: Collection[str], mnemonics: Mapping[str, str]) -> list[str]:
    """The ends of rows' names that tell the configurations of a label apart; empty for a single one."""
    if len(configurations) < 2:
        return [""] * len(configurations)
    shown = [mnemonics.get(configuration, configuration) for configuration in configurations]
    return [f" [config {one}]" for one in (shown if len(set(shown)) == len(shown) else configurations)]


class _TargetReader:
    """Makes the rows of a label in one configuration, and adds what else its files hold to the report."""

    def __init__(self, label: str, target: Target, report: Report, limits: ReadLimits, testlogs: Path | None) -> None:
        self._label, self._results, self._facts = label, target.results, target.facts
        self._report, self._warnings, self._limits, self._testlogs = report, report.warnings, limits, testlogs
        summary = self._facts.get("summary", {})
        self._status = status_of(summary.get("overallStatus"))
        self._shards = max([number_of(summary.get("shardCount")) or 1, *(shard for _, shard, _ in self._results)])
        self._runs = max([number_of(summary.get("runCount")) or 1, *(run for run, _, _ in self._results)])
        self._last: dict[tuple[int, int], int] = {}  # by run and shard: the final attempt
        for run, shard, attempt in self._results:
            self._last[run, shard] = max(attempt, self._last.get((run, shard), 0))

    def rows(self) -> Iterator[Row]:
        """All rows of the label."""
        if not self._results:
            yield self._row_without_result()
            return
        final: list[Row] = []
        given: dict[tuple[int, int], Identities] = {}
        for run, shard, attempt in sorted(self._results):
            rows = self._attempt(run, shard, attempt, given.setdefault((run, attempt), Identities()))
            if attempt == self._last[run, shard]:
                final += rows
            else:
                yield from rows
        own = self._row(self._status, attempt=max(self._last.values()))
        worse = self._status != "NO_STATUS" and _is_worse(own, final)
        yield from self._overridden(final, own) if worse else final

    def _row_without_result(self) -> Row:
        facts = self._facts
        if "summary" in facts:
            return self._row(self._status)
        if "failed" in facts and "succeeded" not in facts:
            self._warnings.add("target_failed_to_build")
            message = message_of(object_of(facts["failed"], "failureDetail").get("message"))
            return replace(self._row("FAILED_TO_BUILD"), message=message or "FAILED_TO_BUILD")
        if "aborted" in facts and "succeeded" not in facts:
            self._warnings.add("target_aborted")
            aborted = facts["aborted"]
            return self._row(message_of(aborted.get("description")) or status_of(aborted.get("reason"), "aborted"))
        self._warnings.add("target_missing_result")
        return replace(self._row("NO_STATUS"), message=None)

    def _attempt(self, run: int, shard: int, attempt: int, given: Identities) -> list[Row]:
        """The rows of one `testResult`."""
        result = self._results[run, shard, attempt]
        shown = f"_shard_{shard}/{self._shards}" if self._shards > 1 else ""
        own = self._row(status_of(result.get("status")), shown, attempt)
        rows = list(self._xml_rows(run, shard, attempt, given))
        if not rows:
            rows = [self._with_duration(own, result)]
        elif _is_worse(own, rows):
            rows = self._overridden(rows, own, result)
        elif own.outcome == "passed" and any(SEVERITY[row.outcome] <= SEVERITY["failed"] for row in rows):
            self._warnings.add("bep_xml_disagree")
        suffix = f" [run {run}]" if self._runs > 1 else ""
        return [replace(row, name=row.name + suffix, cached=is_cached(result)) for row in rows]

    def _overridden(self, rows: list[Row], own: Row, result: Object | None = None) -> list[Row]:
        """Add Bazel's status to rows that are all better than it."""
        self._warnings.add("bep_overrides_xml")
        for place, row in reversed(list(enumerate(rows))):
            if (row.classname, row.name, row.file) == (own.classname, own.name, own.file):
                return [*rows[:place], replace(row, outcome=own.outcome), *rows[place + 1 :]]
        return [*rows, own if result is None else self._with_duration(own, result)]

    def _row(self, status: str, suffix: str = "", attempt: int = 1) -> Row:
        """A row for the target itself, without a duration."""
        name, outcome = "/".join(filter(None, _package_and_name(self._label))) + suffix, outcome_of(status)
        message = None if outcome == "passed" else status
        return Row(self._label, name, None, outcome, None, message, attempt - 1, target=self._label)

    def _with_duration(self, row: Row, result: Object) -> Row:
        seconds = _seconds(result)
        if seconds is None:
            self._warnings.add("duration_missing")
        return replace(row, duration_s=seconds)

    def _xml_rows(self, run: int, shard: int, attempt: int, given: Identities) -> Iterator[Row]:
        path = self._xml_path(run, shard, attempt)
        readers = {"<": partial(read_junit, target=self._label)}
        try:
            report = None if path is None else read_as(readers, read_chunks_of(path), self._limits)
        except OSError:
            report = None
        if report is None:
            self._warnings.add("test_xml_missing")
            return
        self._warnings |= report.warnings
        if report.status != "complete":
            self._report.status = "salvaged"
        self._report.properties += report.properties
        names: dict[Identity, str] = {}
        for row in report.columns.rows():
            identity = (row.classname, row.name, row.file)
            if identity not in names:
                names[identity] = given.give(identity, 0)
                if names[identity] != row.name:
                    self._warnings.add("duplicate_identity")
            yield replace(row, name=names[identity], attempt=row.attempt + attempt - 1)

    def _xml_path(self, run: int, shard: int, attempt: int) -> Path | None:
        """The local copy of an attempt's `test.xml`, if it lists one."""
        outputs = objects_of(self._results[run, shard, attempt].get("testActionOutput"))
        uris = [output.get("uri") for output in outputs if output.get("name") == "test.xml"]
        if self._testlogs is None or not uris:
            return None
        if str(uris[0]).startswith("file:"):
            below = below_testlogs(uris[0])
            return below_folder(self._testlogs, below) if below is not None else None
        package, name = _package_and_name(self._label)
        parts = [f"shard_{shard}_of_{self._shards}"] if self._shards > 1 else []
        parts += [f"run_{run}_of_{self._runs}"] if self._runs > 1 else []
        leaf = "test.xml" if attempt == self._last[run, shard] else f"test_attempts/attempt_{attempt}.xml"
        return below_folder(self._testlogs, "/".join(filter(None, [package, name, "_".join(parts), leaf])))


def configuration_of(its_id: object) -> str:
    """The configuration in the id of an event; empty if there is none."""
    configuration = object_of(its_id, "configuration").get("id")
    return configuration if isinstance(configuration, str) else ""


def is_cached(result: Object) -> bool:
    """True if the payload of a `testResult` comes from a cache."""
    return result.get("cachedLocally") is True or object_of(result, "executionInfo").get("cachedRemotely") is True


def below_testlogs(uri: object) -> str | None:
    """The path of a file below Bazel's `testlogs` from its URI; None for a URI that is not below it."""
    file = uri if isinstance(uri, str) and uri.startswith("file:") else ""
    _, found, below = unquote(file).replace("/bazel-testlogs/", "/testlogs/").rpartition("/testlogs/")
    return below if found else None


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


def outcome_of(status: str) -> Outcome:
    """The outcome that a status of Bazel means."""
    return _OUTCOMES.get(status, "not_run")


def status_of(value: object, default: str = "NO_STATUS") -> str:
    """A status as text."""
    return plain(value) if isinstance(value, str) and value else default


def _is_worse(own: Row, rows: list[Row]) -> bool:
    return all(SEVERITY[own.outcome] < SEVERITY[row.outcome] for row in rows)


def _seconds(result: Object) -> float | None:
    written = result.get("testAttemptDuration")
    if isinstance(written, str) and (match := _SECONDS.match(written)):
        return float(match[0])
    millis = result.get("testAttemptDurationMillis")
    number = millis if isinstance(millis, float) and 0 <= millis < math.inf else number_of(millis)
    return None if number is None else number / 1000


def number_of(value: Any) -> int | None:
    """A 64-bit number of proto3 JSON, which may be a string; None for any other value."""
    if isinstance(value, str):
        return int(value) if _DIGITS.fullmatch(value) else None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value < 10**15 and value == int(value) else None
