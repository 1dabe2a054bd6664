"""Folders and files as tar archives that pods unpack."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path


def pack_folder(folder: Path) -> bytes:
    """A folder as a gzipped tar file without what git, Python and pytest keep there. Equal files make equal bytes."""

    def entry(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(info.name).name in (".git", "__pycache__", ".pytest_cache"):
            return None
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = 0
        info.mode |= 0o444 | (0o111 if info.isdir() else 0)
        return info

    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=3, mtime=0) as file,
        tarfile.open(fileobj=file, mode="w") as tar,
    ):
        tar.add(folder, arcname=".", filter=entry)
    return packed.getvalue()


def pack_file(file: Path) -> bytes:
    """A file as a tar file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(file, arcname=file.name)
    return packed.getvalue()
