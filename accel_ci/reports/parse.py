"""Any report to rows; the format is recognised from the content, not the name.

The entry points of this package. None of them raises for the content of a report.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path

from .bep import read_bep
from .characters import Characters
from .detect import read_as, read_chunks_of
from .group import merge_files
from .json_lines import read_objects
from .junit.read import read_junit
from .report import DEFAULT_LIMITS, ReadLimits, Report, rejected
from .reportlog import read_reportlog
from .runner_lines import read_runner_lines
from .warning_codes import unreadable

BEP_FILE = "bep.ndjson"


def parse_path(path: Path) -> Report:
    """Read a file, or a folder as one test job; `OSError` if it cannot be read."""
    return read_group(path) if path.is_dir() else read_file(path)


def read_chunks(chunks: Iterable[bytes], limits: ReadLimits = DEFAULT_LIMITS, testlogs: Path | None = None) -> Report:
    """Read a report from chunks of bytes of any size; `testlogs` is the local copy of `bazel-testlogs`."""
    return read_as({"<": read_junit, "{": partial(_read_json_lines, testlogs=testlogs)}, chunks, limits)


def read_file(path: Path, testlogs: Path | None = None) -> Report:
    """Read a report; `OSError` if the file cannot be read."""
    return read_chunks(read_chunks_of(path), testlogs=testlogs)


def read_group(folder: Path) -> Report:
    """Read a folder as one test job: `bep.ndjson` if there is one, else every file below is a report.

    `OSError` only if the folder itself cannot be read.
    """
    if (folder / BEP_FILE).is_file():
        return read_file(folder / BEP_FILE, folder / "testlogs")
    paths = sorted(path for path in folder.rglob("*") if not path.is_dir())
    return merge_files((path.relative_to(folder).as_posix(), _read_any(path)) for path in paths)


def _read_any(path: Path) -> Report:
    """Read a file of a job, rejected if that is not possible."""
    if not path.is_file():
        return Report("rejected", {"x_not_a_file"})
    try:
        return read_file(path)
    except OSError as error:
        return Report("rejected", {unreadable(error)})


def _read_json_lines(characters: Characters, limits: ReadLimits, testlogs: Path | None) -> Report:
    """Read JSON lines, whose first object shows the format."""
    objects = read_objects(characters, limits)
    first = next(objects, {})
    every, warnings = chain([first], objects), characters.warnings
    if "$report_type" in first:
        return read_reportlog(every, warnings, limits)
    if isinstance(first.get("id"), dict):  # in other formats it is a text or a number
        return read_bep(every, warnings, limits, testlogs)
    if isinstance(first.get("event"), str) and isinstance(first.get("at"), str):
        return read_runner_lines(every, warnings, limits)
    return rejected("unknown_format", warnings)
