"""Unpack tar archives from others so that no entry lands outside its folder (PEP 706)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

if sys.version_info >= (3, 12):
    import tarfile
else:  # filters came with 3.10.12 and 3.11.4, and Debian 12 has 3.11.2
    from backports import tarfile

TarError = tarfile.TarError


def unpack(archive: IO[bytes], folder: Path) -> None:
    """Unpack an archive, plain or compressed, into a folder, which is created.

    Raises `TarError` if it is damaged, or an entry or link leads out of the folder.
    """
    with tarfile.open(fileobj=archive) as tar:
        tar.extractall(folder, filter="data")
