"""Comparison with an expected report, by the rules of `cases/reports/README.md` §1."""

from __future__ import annotations

from typing import Any

from accel_ci.reports.parse import read_chunks
from accel_ci.reports.report import DEFAULT_LIMITS, ReadLimits, Report


def parse_bytes(data: bytes, limits: ReadLimits = DEFAULT_LIMITS) -> Report:
    """Read a report that is in memory."""
    return read_chunks([data], limits)


def end(report: Report) -> tuple[str, set[str]]:
    """Status and warnings."""
    return report.status, set(report.warnings)


_IDENTITY = ("target", "classname", "name", "file", "attempt")


def differences(expected: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """Describe each difference from the expected report."""
    found = _of_status("report", expected["report"], got["report"])
    if "properties" in expected["report"] and expected["report"]["properties"] != got["report"]["properties"]:
        found.append(f"properties: {got['report']['properties']}")
    if "files" in expected:
        if expected["files"].keys() != got["files"].keys():
            found.append(f"files: {sorted(got['files'])}")
        else:
            found += [
                text for path, file in expected["files"].items() for text in _of_status(path, file, got["files"][path])
            ]
    if len(expected["rows"]) != len(got["rows"]):
        found.append(f"rows: {[[row[key] for key in _IDENTITY] for row in got['rows']]}")
    for row in expected["rows"]:
        keys = [key for key in _IDENTITY if key in row]
        matches = [other for other in got["rows"] if all(other[key] == row[key] for key in keys)]
        if len(matches) != 1:
            found.append(f"{len(matches)} rows match {row}")
            continue
        found += [
            f"{row['name']}: {key} is {matches[0][key]!r}, not {value!r}"
            for key, value in row.items()
            if not _equal(key, value, matches[0][key])
        ]
    return found


def _of_status(name: str, expected: dict[str, Any], got: dict[str, Any]) -> list[str]:
    warnings = {code for code in got["warnings"] if not code.startswith("x_")}
    if (got["status"], warnings) == (expected["status"], set(expected["warnings"])):
        return []
    return [f"{name}: {got['status']} {sorted(warnings)}, not {expected['status']} {expected['warnings']}"]


def _equal(key: str, expected: object, got: object) -> bool:
    if key == "duration_s" and isinstance(expected, (int, float)) and isinstance(got, float):
        return abs(expected - got) <= 1e-6
    return expected == got
