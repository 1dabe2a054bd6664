"""Bytes to a report, by the reader for their first character.

Here belongs what is true of every format: empty and unknown input, a gzip stream that is cut or damaged, the status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from .characters import Characters
from .report import ReadLimits, Report, rejected
from .warning_codes import WarningCode, salvages

Reader = Callable[[Characters, ReadLimits], Report]

_CHUNK = 1 << 18
# After these warnings the reader stops early, so that it does not reach a fault of gzip.
_STOPPED: set[WarningCode] = {
    "malformed", "trailing_content", "nesting_too_deep", "x_too_many_rows", "x_too_many_attributes",
}  # fmt: skip
_CUT: set[WarningCode] = {"truncated", "x_expansion_limit"}


def read_as(readers: Mapping[str, Reader], chunks: Iterable[bytes], limits: ReadLimits) -> Report:
    """Read chunks of bytes with the reader for their first character."""
    characters = Characters(chunks, limits)
    first = characters.first()
    if not first:
        return Report("empty", {"empty_file"})
    reader = readers.get(first)
    if reader is None:
        return rejected("unknown_format", characters.warnings)
    report = reader(characters, limits)
    if report.status in ("rejected", "empty"):
        return report
    if not report.warnings & _STOPPED and (characters.gzip_fault or (characters.gzip_cut and not report.warnings & _CUT)):
        report.warnings.add("gzip_corrupt")
    if salvages(report.warnings):
        report.status = "salvaged"
    if not len(report.columns):
        report.warnings.add("no_test_cases")
    return report


def read_chunks_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file in chunks; raises `OSError` when the first is read."""
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
