"""Wait for other runs on this machine by a lock file, and report the wait."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
