"""Several files of one test job as one report: their order, attempts across them, the status of the job."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from .report import FileStatus, Report, Status

_Identity = tuple[str | None, str, str, str | None]


class _WithWarnings(Protocol):
    @property
    def warnings(self) -> Collection[str]: ...


_File = TypeVar("_File", bound=_WithWarnings)


def order_key(path: str | Path, timestamp_ns: int | None) -> tuple[bool, int, bytes]:
    """The sort key of a file in its job: by timestamp, files without one last, then by path, bytewise."""
    return timestamp_ns is None, timestamp_ns or 0, os.fsencode(path)


def decisive(files: Sequence[_File]) -> Sequence[_File]:
    """The files that decide the status of a job: a failsafe summary beside reports only repeats them."""
    return [file for file in files if "failsafe_summary" not in file.warnings] or files


def merge_files(files: Iterable[tuple[str, Report]]) -> Report:
    """Merge the files of a job, given by relative path, into one report."""
    merged = Report()
    reports = sorted(files, key=lambda file: order_key(file[0], file[1].timestamp_ns))
    attempts: Counter[_Identity] = Counter()  # in the files before
    for _, report in reports:
        columns = report.columns
        identities = list(zip(columns.target, columns.classname, columns.name, columns.file, strict=True))
        before = [attempts[identity] for identity in identities]
        if any(before):
            merged.warnings.add("attempts_across_files")
            columns.attempt = [attempt + offset for attempt, offset in zip(columns.attempt, before, strict=True)]
        for identity, attempt in zip(identities, columns.attempt, strict=True):
            attempts[identity] = max(attempts[identity], attempt + 1)
        merged.warnings |= report.warnings
        merged.properties += report.properties
        merged.columns.extend(columns)
    merged.files = {path: FileStatus(report.status, frozenset(report.warnings)) for path, report in sorted(reports)}
    statuses: set[Status] = {report.status for report in decisive([report for _, report in reports])} or {"empty"}
    merged.status = statuses.pop() if len(statuses) == 1 else "salvaged"
    return merged
