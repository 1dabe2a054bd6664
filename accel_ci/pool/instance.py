"""The machine behind a pool that is started before the tests and paused after them, however they end.

A lease file says until when somebody needs the machine and how it is paused. Who uses it renews the lease; when its process
is killed the lease runs out, and the janitor (`accel-ci janitor`) pauses the machine in its place.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock

from accel_ci.errors import AccelCiError, PoolError

LEASES = "leases"
"""The folder of leases, in the data folder."""

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


@contextmanager
def running_instance(
    provider: Provider, lease: Path, *, lease_s: float, timeout_s: float, note: Callable[[str], None]
) -> Iterator[None]:
    """Have the machine running inside, and paused after it in every case.

    `timeout_s` is for it to become ready. Raises `PoolError` when it does not start or is not ready in time, after it was
    paused. A pause that fails is told by `note`, and left to the janitor.
    """
    lease.parent.mkdir(parents=True, exist_ok=True)
    with _guard(lease):  # a janitor that is at it pauses first
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
        _write(lease, provider, 0.0)  # should this process end now, the janitor need not wait
        note("pausing the pool's instance")
        try:
            provider.pause()
        except AccelCiError as error:
            note(f"the pool's instance is not paused; `accel-ci janitor` tries again: {error}")
        else:
            lease.unlink(missing_ok=True)


def enforce_leases(
    leases: Path, from_description: Callable[[Mapping[str, Any]], Provider], *, dry_run: bool = False
) -> list[Enforced]:
    """Pause every machine whose lease in the folder has run out; gives back what was done, and with `dry_run` would be.

    A machine that cannot be paused keeps its lease, so that the next call tries again.
    """
    done = []
    for lease in sorted(leases.glob("*.json")):
        with _guard(lease):
            try:
                record = json.loads(lease.read_text("utf-8"))
                expired_at = datetime.fromisoformat(record["expires_at"])
                provider = from_description(record["pause"])
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError) as error:
                now = datetime.now(timezone.utc)
                done.append(Enforced(lease, now, False, f"it cannot be read ({error}); pause the machine and remove it"))
                continue
            if expired_at > datetime.now(timezone.utc):
                continue
            problem = None
            if not dry_run:
                try:
                    provider.pause()
                    lease.unlink()
                except AccelCiError as error:
                    problem = str(error)
            done.append(Enforced(lease, expired_at, not dry_run and problem is None, problem))
    return done


def _guard(lease: Path) -> FileLock:
    return FileLock(lease.with_suffix(".lock"))


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
        _write(lease, provider, lease_s)


def _write(lease: Path, provider: Provider, lease_s: float) -> None:
    expires_at = datetime.now(timezone.utc) + timedelta(seconds=lease_s)
    record = {"expires_at": expires_at.isoformat(), "pid": os.getpid(), "pause": provider.describe_pause()}
    scratch = lease.with_suffix(".part")
    scratch.touch(mode=0o600)
    scratch.write_text(json.dumps(record), "utf-8")
    scratch.replace(lease)
