"""The lock that a driver holds on its run's folder for as long as it lives."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from accel_ci.errors import PoolError
from accel_ci.process.waiting import poll

DRIVER_LOCK = "driver.lock"  # the name of the lock file in a run's folder
_LOG = logging.getLogger(__name__)
_PATIENCE_S = 2.0
"""Workers that wait for their driver's end hold the lock for a moment, so a driver tries for longer than that."""


@contextmanager
def sole_driver(run_dir: Path) -> Iterator[None]:
    """Hold the lock of a run's folder. Raises `PoolError` when another driver holds it."""
    path = run_dir / DRIVER_LOCK
    for _ in poll(_LOG, f"the driver of {run_dir}", 0.05, _PATIENCE_S):
        run_dir.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if _is_at(path, lock):  # its last holder may have moved the folder away meanwhile
                yield
                return
    raise PoolError(f"another driver is at work in {run_dir}; wait for it or use another folder")


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
