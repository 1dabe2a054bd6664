"""The addresses that `accel-ci dev` serves a data folder on. Its lock lives as long as the UI, so there is one at a time."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from accel_ci.errors import AccelCiError


@dataclass(frozen=True)
class DevAddresses:
    """The addresses of the Dagster UI and of the HUD."""

    ui: str
    hud: str


def claim(path: Path) -> int:
    """Lock the file for this process and those that inherit the descriptor, which is returned.

    Raises `AccelCiError` with the address of the UI that has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        known = read_addresses(path)
        where = f" at {known.ui}" if known else ", and is just starting"
        raise AccelCiError(f"`accel-ci dev` already runs on {path.parent}{where}; use that one, or end it first") from None
    os.ftruncate(descriptor, 0)
    return descriptor


def publish(descriptor: int, addresses: DevAddresses) -> None:
    """Write the addresses into the locked file."""
    os.write(descriptor, json.dumps(asdict(addresses)).encode())


def read_addresses(path: Path) -> DevAddresses | None:
    """The addresses of the last `accel-ci dev`, which may have ended; None when there was none."""
    try:
        return DevAddresses(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
