"""The addresses that `accel-ci dev` serves a data folder on.

Its lock is held by that process and by Dagster, so that there is one UI at a time, even where the process was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urljoin

import psutil

from accel_ci.errors import AccelCiError

_ENDS_WITHIN_S = 90.0  # Dagster gives each of its servers some of it
_DIES_WITHIN_S = 3.0  # a killed process keeps its files open until the kernel has got round to it
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class DevAddresses:
    """The addresses of the Dagster UI and of the HUD, and the id of our process that serves the HUD; 0 if another does."""

    ui: str
    hud: str
    process: int = 0

    @property
    def artifacts(self) -> str:
        """The address that the folder `artifacts` is below: our own server has it in the HUD, others beside it."""
        return self.hud if self.process else urljoin(self.hud, "../")


def claim(path: Path, ends_within_s: float = _ENDS_WITHIN_S) -> int:
    """Lock the file for this process and those that inherit the descriptor, which is returned.

    Where `accel-ci dev` was killed, Dagster ends a little later, and is waited for. Raises `AccelCiError` that tells which
    processes have the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    started = time.monotonic()
    while not _lock(descriptor):
        known, holders = read_addresses(path), _holders(path)
        is_left = known is not None and known.process not in holders
        if time.monotonic() - started < (ends_within_s if is_left else _DIES_WITHIN_S):
            time.sleep(_LOOK_EVERY_S)
            continue
        os.close(descriptor)
        where, ids = f" at {known.ui}" if known else ", and is just starting", " ".join(map(str, holders)) or "its processes"
        if is_left:
            raise AccelCiError(f"Dagster still runs on {path.parent}{where}, though `accel-ci dev` has ended; kill {ids}")
        raise AccelCiError(
            f"`accel-ci dev` already runs on {path.parent}{where}; use that one, or end it first (kill {ids})"
        )
    os.ftruncate(descriptor, 0)
    return descriptor


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holders(path: Path) -> list[int]:
    """The ids of the other processes of this user that have the file open."""
    name, found = str(path.resolve()), []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(file.path == name for file in process.open_files()):
                found.append(process.pid)
        except psutil.Error:  # it has ended, or is another user's
            continue
    return found


def publish(descriptor: int, addresses: DevAddresses) -> None:
    """Write the addresses into the locked file."""
    os.write(descriptor, json.dumps(asdict(addresses)).encode())


def read_addresses(path: Path) -> DevAddresses | None:
    """The addresses of the last `accel-ci dev`, which may have ended; None when there was none."""
    try:
        return DevAddresses(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
