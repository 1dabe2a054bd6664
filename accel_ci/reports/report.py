"""Reports as data: rows, status, warnings; and the limits of reading.

Here belong the types that all formats share and their JSON form. Each format has a module that reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from accel_ci.model import Outcome

from .warning_codes import WarningCode

Status = Literal["complete", "salvaged", "rejected", "empty"]
Properties = tuple[tuple[str, str], ...]
ReportProperties = list[tuple[str | None, str, str]]

SEVERITY: dict[Outcome, int] = {
    "crashed": 0, "timeout": 1, "error": 2, "failed": 3, "not_run": 4, "xpassed": 5, "skipped": 6, "xfailed": 7, "passed": 8,
}  # fmt: skip
"""Outcomes by severity, the worst first."""


@dataclass(frozen=True)
class ReadLimits:
    """Limits of reading a report; past one, the report has a warning, and is salvaged where rows may be missing."""

    depth: int = 100  # elements open at once; one more is damage (`nesting_too_deep`)
    text: int = 1 << 18  # characters of a text or attribute that are read; more is cut (`output_truncated`)
    rows: int = 10_000_000  # rows of a report; one more is damage (`x_too_many_rows`)
    line: int = 1 << 24  # characters of a JSON line with its long texts cut; a longer one is skipped (`x_line_too_long`)
    expanded: int = 1 << 26  # bytes that gzip may always expand to
    expansion: int = 400  # beyond `expanded`, the factor by which gzip may expand; more is cut off (`x_expansion_limit`)


DEFAULT_LIMITS = ReadLimits()


@dataclass(frozen=True)
class Row:
    """One attempt of one test in a report. `attempt` counts from 0; `target` is a Bazel label."""

    classname: str
    name: str
    file: str | None
    outcome: Outcome
    duration_s: float | None
    message: str | None
    attempt: int
    properties: Properties = ()
    cached: bool = False
    target: str | None = None


@dataclass
class Columns:
    """Rows as a list per field of `Row`, all of one length."""

    classname: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    file: list[str | None] = field(default_factory=list)
    outcome: list[Outcome] = field(default_factory=list)
    duration_s: list[float | None] = field(default_factory=list)
    message: list[str | None] = field(default_factory=list)
    attempt: list[int] = field(default_factory=list)
    properties: list[Properties] = field(default_factory=list)
    cached: list[bool] = field(default_factory=list)
    target: list[str | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.name)

    def append(self, row: Row) -> None:
        """Add a row."""
        for name, column in vars(self).items():
            column.append(getattr(row, name))

    def extend(self, other: Columns) -> None:
        """Add all rows of another."""
        for name, column in vars(self).items():
            column.extend(getattr(other, name))

    def rows(self) -> Iterator[Row]:
        """The rows one by one."""
        return map(Row, *vars(self).values())


@dataclass(frozen=True)
class FileStatus:
    """The status and warnings of one file of a job."""

    status: Status
    warnings: frozenset[WarningCode]


@dataclass
class Report:
    """A report, or the reports of one test job as one, in columns."""

    status: Status = "complete"
    warnings: set[WarningCode] = field(default_factory=set)
    properties: ReportProperties = field(default_factory=list)  # of its suites: suite name, name, value
    columns: Columns = field(default_factory=Columns)
    timestamp_ns: int | None = None  # the first of a suite, since 1970; it orders the files of a job
    files: dict[str, FileStatus] = field(default_factory=dict)  # of a job by relative path; empty for a Bazel group

    @property
    def rows(self) -> list[Row]:
        """The rows one by one; made anew each time."""
        return list(self.columns.rows())


def rejected(code: WarningCode, warnings: set[WarningCode]) -> Report:
    """The report for input that is not a test report; of its warnings only those about its characters stay."""
    kept: set[WarningCode] = {"invalid_encoding", "encoding_mismatch", "encoding_unknown", "xml_1_1", "leading_whitespace"}
    return Report("rejected", {code} | (warnings & kept))


def to_json(report: Report) -> dict[str, Any]:
    """The form of a report that `accel-ci parse --json` prints."""

    def head(of: Report | FileStatus) -> dict[str, Any]:
        return {"status": of.status, "warnings": sorted(of.warnings)}

    document: dict[str, Any] = {
        "report": {**head(report), "properties": [list(entry) for entry in report.properties]},
        "rows": [{**vars(row), "properties": [list(entry) for entry in row.properties]} for row in report.rows],
    }
    if report.files:
        document["files"] = {path: head(file) for path, file in report.files.items()}
    return document
