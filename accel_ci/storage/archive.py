"""Unpacking tar archives that others made: nothing of one gets outside of its folder (PEP 706)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

if sys.version_info >= (3, 12):
    import tarfile
else:  # these have filters only from 3.10.12 and 3.11.4 on, and Debian 12 comes with 3.11.2
    from backports import tarfile

TarError = tarfile.TarError


def unpack(archive: IO[bytes], folder: Path) -> None:
    """Unpack an archive, plain or compressed, below a folder, which is made.

    Raises `TarError` for one that is damaged, or whose entries or links lead out of the folder.
    """
    with tarfile.open(fileobj=archive) as tar:
        tar.extractall(folder, filter="data")
