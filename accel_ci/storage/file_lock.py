"""Lock files: wait for other runs, report the wait, and see whether a process that holds one lives."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

_LOG = logging.getLogger(__name__)


@contextmanager
def acquire_or_wait(lock_file: Path, say: Callable[[str], None], what: str) -> Iterator[None]:
    """Hold a lock inside the context. If another run has it, report that it has `what` ("the cards") and wait."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lock_file)
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        _LOG.info("waiting for %s, which another run holds (%s)", what, lock_file)
        say(f"waiting for {what}, which another run holds")
        started = time.monotonic()
        held = lock.acquire()
        _LOG.info("%s came free after %.1f s", what, time.monotonic() - started)
        say(f"{what} came free")
    with held:
        yield


def is_locked(path: Path) -> bool:
    """True when somebody holds the lock of a file, or may, as another user; False when there is no file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def lock_for_life(path: Path) -> BinaryIO:
    """Lock a new file that nobody sees before it is locked. The lock lasts until the file is closed or the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unseen = path.with_name(f".{path.name}.{os.getpid()}")
    file = unseen.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    unseen.replace(path)
    return file
