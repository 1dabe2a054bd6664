"""Leases on the machine behind a pool: it is started before the tests and paused after them, however they end.

Each user has a lease file with its expiry and the pause command, and holds a lock beside it for as long as it lives. Users
renew their leases; the last one pauses the machine. When a user is killed, its lock is free, and the next user or the
janitor (`accel-ci janitor`) pauses the machine instead. The expiry is for users whose locks cannot be seen, and for those
that hang. Nobody takes a lease while somebody else decides whether to pause the machine, or pauses it.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from filelock import FileLock

from accel_ci.errors import AccelCiError, PoolError
from accel_ci.instance.command_provider import CommandProvider
from accel_ci.process.waiting import poll
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.file_lock import acquire_or_wait, is_locked, lock_for_life

LEASES = "leases"  # the folder of leases, in the data folder
_LOG = logging.getLogger(__name__)
_GUARD = "guard.lock"
_READY_EVERY_S = 0.5
_RENEWALS = 3  # the number of renewals before a lease would expire


@dataclass(frozen=True)
class Enforced:
    """A lease that is over, after the janitor's visit; `why` it is, and `problem` is why the machine could not be paused."""

    lease: Path
    why: str
    problem: str | None = None


@dataclass(frozen=True)
class _Lease:
    """A lease file; it is `orphaned` when its user has ended without removing it."""

    path: Path
    expires_at: datetime
    orphaned: bool
    pause: Mapping[str, Any]

    @property
    def over(self) -> str | None:
        """The reason why nobody uses the machine by this lease any more; None while somebody may."""
        if self.orphaned:
            return "its user has ended"
        if self.expires_at <= datetime.now(timezone.utc):
            return f"its lease ran out at {self.expires_at:%Y-%m-%d %H:%M:%S} UTC"
        return None


@contextmanager
def running_instance(
    provider: CommandProvider, leases: Path, *, lease_s: float, timeout_s: float, note: Callable[[str], None]
) -> Iterator[None]:
    """Keep the machine running in the context; pause it afterwards in every case, unless others still use it.

    `leases` is the folder of leases, `timeout_s` the time in which the machine must become ready. Raises `PoolError` when it
    does not start or is not ready in time, after pausing it. Reports a failed pause by `note` and leaves it to the janitor.
    """
    leases.mkdir(parents=True, exist_ok=True)
    lease = leases / f"instance-{uuid.uuid4().hex}.json"
    with acquire_or_wait(leases / _GUARD, note, "the pool's instance"):  # somebody may be pausing it
        life = lock_for_life(_lock_of(lease))
        _write(lease, provider, lease_s)
    done = threading.Event()
    keeper = threading.Thread(target=_renew, args=(lease, provider, lease_s, done), daemon=True)
    keeper.start()
    try:
        note("starting the pool's instance")
        provider.start()
        wait = poll(_LOG, "the pool's instance to become ready", _READY_EVERY_S, timeout_s)
        if not any(provider.is_ready() for _ in wait):
            late = f"the pool's instance was not ready within {timeout_s:g} s"
            raise PoolError(f"{late}; look at it, or raise pool.instance.timeout_seconds")
        yield
    finally:
        done.set()
        keeper.join()
        with acquire_or_wait(leases / _GUARD, note, "the pool's instance"):
            _leave(provider, lease, note)
        life.close()


def _leave(provider: CommandProvider, lease: Path, note: Callable[[str], None]) -> None:
    """Remove a lease, and pause the machine if no other lease is in use."""
    with suppress(OSError):
        _write(lease, provider, 0.0)  # if this process ends now, the janitor need not wait
    known = _leases_of(lease.parent, json.loads(json.dumps(provider.describe_pause())))
    if any(other.over is None for other in known if other.path != lease):
        note("the pool's instance is left running, for another run uses it")
        _remove(lease)
        return
    note("pausing the pool's instance")
    if (problem := _pause(provider, known)) is not None:
        note(f"the pool's instance is not paused; `accel-ci janitor` tries again: {problem}")


def _pause(provider: CommandProvider, leases: list[_Lease]) -> str | None:
    """Pause a machine and remove its leases; return the problem when that fails."""
    try:
        provider.pause()
    except AccelCiError as error:
        return str(error)
    for lease in leases:
        _remove(lease.path)
    return None


def _lock_of(lease: Path) -> Path:
    return lease.with_suffix(".lock")


def _remove(lease: Path) -> None:
    lease.unlink(missing_ok=True)
    _lock_of(lease).unlink(missing_ok=True)


def enforce_leases(leases: Path, *, dry_run: bool = False) -> list[Enforced]:
    """Pause every machine whose leases in the folder are all over.

    Return what was done or, with `dry_run`, would be done. A machine that cannot be paused keeps its leases, so that the
    next call tries again.
    """
    if not leases.is_dir():
        return []
    done: list[Enforced] = []
    handled: list[Mapping[str, Any]] = []
    with FileLock(leases / _GUARD):
        for path in sorted(leases.glob("*.json")):
            try:
                lease = _read(path)
                provider = CommandProvider.from_description(lease.pause)
            except FileNotFoundError:  # paused already, or its user has removed it
                continue
            except (ValueError, KeyError, TypeError) as error:
                done.append(
                    Enforced(path, "its lease is damaged", f"it cannot be read ({error}); pause the machine and remove it")
                )
                continue
            known = _leases_of(leases, lease.pause)
            if lease.pause in handled or lease.over is None or not all(other.over for other in known):
                continue
            handled.append(lease.pause)
            done.append(Enforced(path, lease.over, None if dry_run else _pause(provider, known)))
    return done


def _read(path: Path) -> _Lease:
    """Read a lease. Raises `FileNotFoundError`, or `ValueError`, `KeyError` and `TypeError` for an invalid one."""
    record = json.loads(path.read_text("utf-8"))
    orphaned = _lock_of(path).exists() and not is_locked(_lock_of(path))
    return _Lease(path, datetime.fromisoformat(record["expires_at"]), orphaned, record["pause"])


def _leases_of(leases: Path, pause: Mapping[str, Any]) -> list[_Lease]:
    """The leases of one machine, which its pause command identifies."""
    known = []
    for path in leases.glob("*.json"):
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            lease = _read(path)
            known += [lease] if lease.pause == pause else []
    return known


def _renew(lease: Path, provider: CommandProvider, lease_s: float, done: threading.Event) -> None:
    while not done.wait(lease_s / _RENEWALS):
        with suppress(OSError):  # the next renewal may succeed
            _write(lease, provider, lease_s)


def _write(lease: Path, provider: CommandProvider, lease_s: float) -> None:
    expires_at = datetime.now(timezone.utc) + timedelta(seconds=lease_s)
    record = {"expires_at": expires_at.isoformat(), "pause": provider.describe_pause()}
    write_whole_file(lease, json.dumps(record).encode(), mode=0o600)
