"""Folders: the files of one job, their order, attempts across them, the status of the job."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from accel_ci.reports.parse import parse_path
from accel_ci.reports.report import to_json

from .comparison import end


def suite(*names: str, stamp: str = "") -> bytes:
    """A report with these cases; a name that ends in `!` failed."""
    cases = "".join(
        f'<testcase classname="c" name="{name.rstrip("!")}" time="1">{"<failure/>" if "!" in name else ""}</testcase>'
        for name in names
    )
    return (
        f'<testsuites><testsuite timestamp="never"/><testsuite timestamp="{stamp}">{cases}</testsuite></testsuites>'.encode()
    )


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_attempts_across_files_in_order_of_time(tmp_path: Path) -> None:
    files = {
        "z.xml": suite("a!", "b", stamp="2031-01-01T00:00:00Z"),
        "y/x.xml.gz": gzip.compress(suite("a!", "a", stamp="2031-01-01T01:30:00+01:00")),
        "a.xml": suite("a", "c"), "b.xml": suite("a!"),
    }  # fmt: skip
    report = parse_path(write(tmp_path, files))
    assert [(row.name, row.attempt, row.outcome) for row in report.rows] == [
        ("a", 0, "failed"), ("b", 0, "passed"), ("a", 1, "failed"), ("a#2", 0, "passed"), ("a", 2, "passed"),
        ("c", 0, "passed"),
        ("a", 3, "failed"),
    ]  # fmt: skip
    assert end(report) == ("complete", {"attempts_across_files", "duplicate_identity"})
    assert list(report.files) == ["a.xml", "b.xml", "y/x.xml.gz", "z.xml"]
    assert to_json(report)["files"]["z.xml"] == {"status": "complete", "warnings": []}


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({}, "empty"),
        ({"a": b"", "b": b" "}, "empty"),
        ({"a": b"x", "b": b"y"}, "rejected"),
        ({"a": b"", "b": b"y"}, "salvaged"),
        ({"a": suite("a"), "b": b"y"}, "salvaged"),
        ({"a": suite("a"), "b": suite("a")[:-9]}, "salvaged"),
        ({"a": suite("a"), "b": b"<failsafe-summary/>"}, "complete"),
        ({"a": suite("a"), "b": b"<failsafe-summary/>", "c": b""}, "salvaged"),
        ({"b": b"<failsafe-summary/>"}, "rejected"),
    ],
)
def test_status(tmp_path: Path, files: dict[str, bytes], status: str) -> None:
    report = parse_path(write(tmp_path, files))
    assert report.status == status
    assert status not in ("empty", "rejected") or not report.rows


def test_paths_that_are_not_files_are_listed(tmp_path: Path) -> None:
    write(tmp_path, {"a": suite("a")})
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    report = parse_path(tmp_path)
    assert end(report) == ("salvaged", {"x_not_a_file"})
