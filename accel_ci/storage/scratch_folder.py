"""Scratch folders that a killed process leaves behind: each is locked while its process lives, so others can be removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "accel-ci-scratch-"
"""The beginning of the names of all scratch folders; one that is not locked yet has a dot before it."""

_UNLOCKED_AT_MOST_S = 60


@contextmanager
def scratch_folder(purpose: str, place: Path | None = None) -> Iterator[Path]:
    """Make a folder in `place`, by default that of temporary files, and remove it at the end. Its name has the purpose."""
    unlocked = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=place))
    folder = unlocked.with_name(f"{PREFIX}{purpose}-{unlocked.name.rpartition('-')[2]}")
    handle = os.open(unlocked, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        unlocked.rename(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def remove_abandoned_folders(place: Path | None = None, *, dry_run: bool = False) -> list[Path]:
    """Remove this user's scratch folders whose processes have ended, and return them; with `dry_run` only return them.

    Root removes those of all users, since it gives some to the users that run the code of the sources.
    """
    place = place or Path(tempfile.gettempdir())
    found = [*place.glob(f"{PREFIX}*"), *place.glob(f".{PREFIX}*")]
    abandoned = [folder for folder in found if _is_abandoned(folder)]
    for folder in abandoned if not dry_run else ():
        shutil.rmtree(folder, ignore_errors=True)
    return abandoned


def _is_abandoned(folder: Path) -> bool:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # not a folder, another user's, or gone
        return False
    try:
        status = os.fstat(handle)
        if os.getuid() not in (0, status.st_uid):
            return False
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return not folder.name.startswith(".") or time.time() - status.st_mtime > _UNLOCKED_AT_MOST_S
    except OSError:
        return False
    finally:
        os.close(handle)
