"""From bytes to the reader that their first character asks for, and what gzip adds to its report.

Here belongs what holds for every format: empty input, unknown input, a compressed stream that ends early or is faulty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from .characters import Characters
from .report import ColumnReport, ReadLimits, rejected

Reader = Callable[[Characters], ColumnReport]

_CHUNK = 1 << 18
# Damage that ends the reading before the end of what was decompressed: a fault of gzip lies behind it.
_STOPPED = frozenset({"malformed", "trailing_content", "nesting_too_deep", "x_too_many_rows", "x_too_many_attributes"})
_CUT = frozenset({"truncated", "x_expansion_limit"})


def read_as(readers: Mapping[str, Reader], chunks: Iterable[bytes], limits: ReadLimits) -> ColumnReport:
    """Have chunks of bytes read by the reader for their first character."""
    characters = Characters(chunks, limits)
    first = characters.first()
    if not first:
        return ColumnReport("empty", {"empty_file"})
    reader = readers.get(first)
    if reader is None:
        return rejected("unknown_format", characters.warnings)
    report = reader(characters)
    if report.status in ("rejected", "empty"):
        return report
    if (characters.gzip_fault or characters.gzip_cut) and not report.warnings & _STOPPED:
        report.status = "salvaged"
        if characters.gzip_fault or not report.warnings & _CUT:
            report.warnings.add("gzip_corrupt")
    if not len(report.columns):
        report.warnings.add("no_test_cases")
    return report


def read_chunks_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file; raises `OSError` when they are asked for."""
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
