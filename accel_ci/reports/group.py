"""Several files of one test job as one report: their order, attempts across them, the status of the whole."""

from __future__ import annotations

import os
from collections.abc import Iterable

from .report import ColumnReport, FileStatus, Status

_Identity = tuple[str | None, str, str, str | None]


def merge_files(files: Iterable[tuple[str, ColumnReport]]) -> ColumnReport:
    """One report of the files of a group, given by relative path."""
    merged = ColumnReport(files={})
    reports = list(files)
    reports.sort(key=lambda file: (file[1].timestamp_ns is None, file[1].timestamp_ns or 0, os.fsencode(file[0])))
    attempts: dict[_Identity, int] = {}  # of the files before
    for _, report in reports:
        columns = report.columns
        identities = list(zip(columns.target, columns.classname, columns.name, columns.file, strict=True))
        before = [attempts.get(identity, 0) for identity in identities]
        if any(before):
            merged.warnings.add("attempts_across_files")
            columns.attempt = [attempt + offset for attempt, offset in zip(columns.attempt, before, strict=True)]
        for identity, attempt in zip(identities, columns.attempt, strict=True):
            if attempt >= attempts.get(identity, 0):
                attempts[identity] = attempt + 1
        merged.warnings |= report.warnings
        merged.properties += report.properties
        merged.columns.extend(columns)
    merged.files = {path: FileStatus(report.status, frozenset(report.warnings)) for path, report in sorted(reports)}
    merged.status = _status([report for _, report in reports])
    return merged


def _status(reports: list[ColumnReport]) -> Status:
    """The status of the whole; a failsafe summary beside others does not count."""
    counting = [report.status for report in reports if "failsafe_summary" not in report.warnings]
    statuses = set(counting or [report.status for report in reports])
    if not statuses:
        return "empty"
    return statuses.pop() if len(statuses) == 1 else "salvaged"
