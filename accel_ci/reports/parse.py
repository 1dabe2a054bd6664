"""Any report to rows: what a file is, is seen from its content.

The way in to this package: `parse_bytes`, `parse_file`, `parse_group` and `parse_path` give dataclasses, `read_chunks`,
`read_file` and `read_group` the same as columns.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from .bep import read_bep
from .characters import Characters
from .detect import read_as, read_chunks_of
from .group import merge_files
from .json_lines import read_objects
from .junit import read_junit
from .report import DEFAULT_LIMITS, ColumnReport, GroupReport, ReadLimits, Report, rejected
from .reportlog import read_reportlog
from .runner_lines import read_runner_lines

BEP_FILE = "bep.ndjson"
_NO_REPORTS = frozenset({"expected.json"})  # what a folder of a case holds beside its input
_PIECE = 1 << 18


def parse_bytes(data: bytes, limits: ReadLimits = DEFAULT_LIMITS) -> Report:
    """Read a report that is in memory; never raises for what is in it."""
    pieces = (data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
    return read_chunks(pieces, limits).report()


def parse_file(path: Path, limits: ReadLimits = DEFAULT_LIMITS) -> Report:
    """Read a report; never raises for what is in it, `OSError` if the file cannot be read."""
    return read_file(path, limits).report()


def parse_group(folder: Path, limits: ReadLimits = DEFAULT_LIMITS) -> GroupReport:
    """Read a folder as one test job: a Bazel group if it has `bep.ndjson`, else every file below is a report of it.

    `OSError` only if the folder itself cannot be read.
    """
    report = read_group(folder, limits).report()
    return report if isinstance(report, GroupReport) else GroupReport(**vars(report))


def parse_path(path: Path, limits: ReadLimits = DEFAULT_LIMITS) -> Report:
    """Read a file, or a folder as one group."""
    return parse_group(path, limits) if path.is_dir() else parse_file(path, limits)


def read_chunks(chunks: Iterable[bytes], limits: ReadLimits = DEFAULT_LIMITS, testlogs: Path | None = None) -> ColumnReport:
    """Read a report from chunks of bytes of any size; `testlogs` is the local copy of `bazel-testlogs`."""
    readers = {
        "<": functools.partial(read_junit, limits=limits),
        "{": functools.partial(_read_json_lines, limits=limits, testlogs=testlogs),
    }
    return read_as(readers, chunks, limits)


def read_file(path: Path, limits: ReadLimits = DEFAULT_LIMITS, testlogs: Path | None = None) -> ColumnReport:
    """Like `parse_file`, as columns."""
    return read_chunks(read_chunks_of(path), limits, testlogs)


def read_group(folder: Path, limits: ReadLimits = DEFAULT_LIMITS) -> ColumnReport:
    """Like `parse_group`, as columns."""
    if (folder / BEP_FILE).is_file():
        return read_file(folder / BEP_FILE, limits, folder / "testlogs")
    paths = sorted(
        path for path in folder.rglob("*") if not path.is_dir() and path.relative_to(folder).as_posix() not in _NO_REPORTS
    )
    return merge_files((path.relative_to(folder).as_posix(), _read_any(path, limits)) for path in paths)


def _read_any(path: Path, limits: ReadLimits) -> ColumnReport:
    """A file of a group, which may be none that can be read."""
    if not path.is_file():
        return ColumnReport("rejected", {"x_not_a_file"})
    try:
        return read_file(path, limits)
    except OSError:
        return ColumnReport("rejected", {"x_unreadable"})


def _read_json_lines(characters: Characters, limits: ReadLimits, testlogs: Path | None) -> ColumnReport:
    """JSON lines, whose first object says what they are."""
    objects: Iterator[dict[str, object]] = read_objects(characters, limits)
    first = next(objects, None)
    warnings = characters.warnings
    if first is None:
        return rejected("unknown_format", warnings)
    objects = chain([first], objects)
    if "$report_type" in first:
        return read_reportlog(objects, warnings, limits)
    if "id" in first:
        return read_bep(objects, warnings, limits, testlogs)
    if "event" in first and "at" in first:
        return read_runner_lines(objects, warnings, limits)
    return rejected("unknown_format", warnings)
