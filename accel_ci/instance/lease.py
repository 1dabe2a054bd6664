"""The machine behind a pool that is started before the tests and paused after them, however they end.

A lease file for each of its users says until when that one needs the machine and how it is paused. A user renews its lease;
the last one pauses the machine. When a user is killed its lease runs out, and the janitor (`accel-ci janitor`) pauses the
machine in its place. Nobody takes a lease while it is decided whether a machine is paused, or while that is done.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock

from accel_ci.errors import AccelCiError, PoolError
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.file_lock import acquire_or_wait

LEASES = "leases"
"""The folder of leases, in the data folder."""

_GUARD = "guard.lock"
_READY_EVERY_S = 0.5
_RENEWALS = 3
"""How often a lease is renewed in its own time."""


class Provider(Protocol):
    """Something that can start and pause a machine. Both may be asked for again at any time, whatever the state is."""

    def start(self) -> None:
        """Start the machine, or find it started. Raises `PoolError`."""

    def is_ready(self) -> bool:
        """Whether the machine can take workers now."""

    def pause(self) -> None:
        """Pause the machine, or find it paused. Raises `PoolError`."""

    def describe_pause(self) -> Mapping[str, Any]:
        """What `from_description` of the janitor makes a provider from that can pause the machine; JSON."""


@dataclass(frozen=True)
class Enforced:
    """What the janitor did about a lease that had run out; `problem` says why the machine is not paused."""

    lease: Path
    expired_at: datetime
    paused: bool
    problem: str | None = None


@dataclass(frozen=True)
class _Lease:
    """What a lease file says; one that is `orphaned` is of a process of this machine that has ended."""

    path: Path
    expires_at: datetime
    orphaned: bool
    pause: Mapping[str, Any]

    @property
    def expired(self) -> bool:
        return self.expires_at <= datetime.now(timezone.utc)


@contextmanager
def running_instance(
    provider: Provider, leases: Path, *, lease_s: float, timeout_s: float, note: Callable[[str], None]
) -> Iterator[None]:
    """Have the machine running inside, and paused after it in every case, unless others use it then.

    `leases` is the folder of leases, `timeout_s` is for the machine to become ready. Raises `PoolError` when it does not
    start or is not ready in time, after it was paused. A pause that fails is told by `note`, and left to the janitor.
    """
    leases.mkdir(parents=True, exist_ok=True)
    lease = leases / f"instance-{uuid.uuid4().hex}.json"
    with acquire_or_wait(leases / _GUARD, note, "the pool's instance"):  # it may just be paused
        _write(lease, provider, lease_s)
    done = threading.Event()
    keeper = threading.Thread(target=_renew, args=(lease, provider, lease_s, done), daemon=True)
    keeper.start()
    try:
        note("starting the pool's instance")
        provider.start()
        _wait_ready(provider, timeout_s)
        yield
    finally:
        done.set()
        keeper.join()
        with acquire_or_wait(leases / _GUARD, note, "the pool's instance"):
            _leave(provider, lease, note)


def _leave(provider: Provider, lease: Path, note: Callable[[str], None]) -> None:
    """Give a lease up, and pause the machine if that was the last one in use."""
    with suppress(OSError):
        _write(lease, provider, 0.0)  # should this process end now, the janitor need not wait
    known = _leases_of(lease.parent, json.loads(json.dumps(provider.describe_pause())))
    if any(not (other.expired or other.orphaned) for other in known if other.path != lease):
        note("the pool's instance is left running, for another run uses it")
        lease.unlink(missing_ok=True)
        return
    note("pausing the pool's instance")
    try:
        provider.pause()
    except AccelCiError as error:
        note(f"the pool's instance is not paused; `accel-ci janitor` tries again: {error}")
    else:
        _remove(known)


def enforce_leases(
    leases: Path, from_description: Callable[[Mapping[str, Any]], Provider], *, dry_run: bool = False
) -> list[Enforced]:
    """Pause every machine whose leases in the folder have all run out.

    Gives back what was done, and with `dry_run` would be. A machine that cannot be paused keeps its leases, so that the next
    call tries again.
    """
    if not leases.is_dir():
        return []
    done: list[Enforced] = []
    handled: list[Mapping[str, Any]] = []
    with FileLock(leases / _GUARD):
        for path in sorted(leases.glob("*.json")):
            try:
                lease = _read(path)
                provider = from_description(lease.pause)
            except FileNotFoundError:  # its machine is paused already, or its user has ended
                continue
            except (ValueError, KeyError, TypeError) as error:
                now = datetime.now(timezone.utc)
                done.append(Enforced(path, now, False, f"it cannot be read ({error}); pause the machine and remove it"))
                continue
            known = _leases_of(leases, lease.pause)
            if lease.pause in handled or not all(other.expired for other in known):
                continue
            handled.append(lease.pause)
            problem = None
            if not dry_run:
                try:
                    provider.pause()
                    _remove(known)
                except AccelCiError as error:
                    problem = str(error)
            done.append(Enforced(path, lease.expires_at, not dry_run and problem is None, problem))
    return done


def _read(path: Path) -> _Lease:
    """Read a lease. Raises `FileNotFoundError`; `ValueError`, `KeyError` and `TypeError` when it is none."""
    record = json.loads(path.read_text("utf-8"))
    orphaned = "host" in record and record["host"] == os.uname().nodename and _is_gone(int(record["pid"]))
    return _Lease(path, datetime.fromisoformat(record["expires_at"]), orphaned, record["pause"])


def _leases_of(leases: Path, pause: Mapping[str, Any]) -> list[_Lease]:
    """The leases of one machine, told from others by how it is paused."""
    known = []
    for path in leases.glob("*.json"):
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            lease = _read(path)
            known += [lease] if lease.pause == pause else []
    return known


def _remove(leases: list[_Lease]) -> None:
    for lease in leases:
        lease.path.unlink(missing_ok=True)


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def _wait_ready(provider: Provider, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not provider.is_ready():
        if time.monotonic() > deadline:
            raise PoolError(
                f"the pool's instance was not ready within {timeout_s:g} s; look at it, or raise "
                "pool.instance.timeout_seconds"
            )
        time.sleep(_READY_EVERY_S)


def _renew(lease: Path, provider: Provider, lease_s: float, done: threading.Event) -> None:
    while not done.wait(lease_s / _RENEWALS):
        with suppress(OSError):  # the next time may do
            _write(lease, provider, lease_s)


def _write(lease: Path, provider: Provider, lease_s: float) -> None:
    expires_at = datetime.now(timezone.utc) + timedelta(seconds=lease_s)
    user = {"host": os.uname().nodename, "pid": os.getpid()}
    record = {"expires_at": expires_at.isoformat(), **user, "pause": provider.describe_pause()}
    write_whole_file(lease, json.dumps(record).encode(), mode=0o600)
