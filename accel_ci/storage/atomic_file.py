"""Write files that are there whole or not at all, however many write them at once and wherever one of them stops.

The content goes into a scratch file in the same folder, which then takes the file's name. A writer holds a lock on its
scratch file, so that those of killed writers can be told from those in use (`remove_abandoned`).
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_SCRATCH = ".put-"
_UNLOCKED_AT_MOST_S = 60
"""A scratch file exists before it is locked: an empty one is left alone for this long."""


@contextmanager
def whole_file(path: Path, *, durable: bool = False, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the block ends well; of several writers the last one's stays.

    A `durable` file is on the disk when the block has ended. The umask applies to `mode`.
    """
    with _scratch_file(path.parent, mode) as file:
        yield file
        file.flush()
        if durable:
            os.fsync(file.fileno())
        Path(file.name).replace(path)
    if durable:
        _sync_folder(path.parent)


def write_whole_file(path: Path, content: bytes, *, durable: bool = False, mode: int = 0o666) -> None:
    """Write a file with this content, in place of an earlier one."""
    with whole_file(path, durable=durable, mode=mode) as file:
        file.write(content)


def create_whole_file(path: Path, content: bytes) -> bool:
    """Make a file where there is none, and have it on the disk. Return False if there is one: the first writer's stays."""
    with _scratch_file(path.parent) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        try:
            path.hardlink_to(file.name)
        except FileExistsError:
            return False
    _sync_folder(path.parent)
    return True


def replace_link(path: Path, target: Path) -> None:
    """Make `path` a symbolic link to `target`, in place of what it was."""
    scratch = _scratch_name(path.parent)
    scratch.symlink_to(target)
    scratch.replace(path)


def remove_abandoned(folder: Path) -> None:
    """Remove the scratch files that nobody holds a lock on: their writers were killed."""
    for path in folder.glob(f"{_SCRATCH}*"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(file.fileno())
            if status.st_size or time.time() - status.st_mtime > _UNLOCKED_AT_MOST_S:
                path.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _scratch_file(folder: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    scratch = _scratch_name(folder)
    try:
        with open(scratch, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield file
    finally:
        scratch.unlink(missing_ok=True)


def _scratch_name(folder: Path) -> Path:
    return folder / f"{_SCRATCH}{uuid.uuid4().hex}"
