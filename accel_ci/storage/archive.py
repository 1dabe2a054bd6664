"""Unpack archives from others within limits, and so that no entry lands outside its folder (PEP 706)."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

if sys.version_info >= (3, 12):
    import tarfile
else:  # filters came with 3.10.12 and 3.11.4, and Debian 12 has 3.11.2
    import backports.tarfile as tarfile

TarError = tarfile.TarError


UNPACKED_LIMIT = 4 << 30
"""The bytes that an archive may unpack to."""

FILES_LIMIT = 200_000
"""The files and folders that an archive may have."""


def unpack(archive: IO[bytes], folder: Path, *, limit: int = UNPACKED_LIMIT, files: int = FILES_LIMIT) -> None:
    """Unpack an archive, plain or compressed, into a folder, which is created.

    Raises `TarError` if it is damaged, an entry or link leads out of the folder, or it has more than `limit` bytes or more
    than `files` entries; what comes before is then unpacked.
    """

    def within_limits(entries: Iterator[tarfile.TarInfo]) -> Iterator[tarfile.TarInfo]:
        size = 0
        for number, entry in enumerate(entries, 1):
            size += entry.size
            if number > files:
                raise TarError(f"{entry.name}: the archive has more than {files:,} entries")
            if size > limit:
                raise TarError(f"{entry.name}: the archive unpacks to more than {limit:,} bytes")
            yield entry

    with tarfile.open(fileobj=archive) as tar:
        for entry in within_limits(iter(tar)):
            tar.extract(entry, folder, filter="data")


def gunzip(content: bytes, limit: int) -> bytes:
    """Return the content of a gzip stream. Raises `ValueError` if it is damaged or has more than `limit` bytes."""
    stream = zlib.decompressobj(31)
    try:
        plain = stream.decompress(content, limit + 1)
    except zlib.error as error:
        raise ValueError(f"not a gzip stream: {error}") from None
    if len(plain) > limit:
        raise ValueError(f"a gzip stream has more than {limit:,} bytes")
    if not stream.eof:
        raise ValueError("a gzip stream is cut short")
    return plain
