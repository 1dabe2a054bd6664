"""The pool of a project, which does more than run rounds: worker specs, locks, leftovers and reproduction.

Code outside of the pools asks these methods and never for the pool's kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from accel_ci.instance.lease import enforce_leases
from accel_ci.model import RuntimeImage, WorkerSpec
from accel_ci.rounds.engine import Pool

EndedAt = Callable[[str], float | None]
"""When a run ended, in seconds since the epoch; None for one that has not ended or is unknown."""


@dataclass(frozen=True)
class Leftover:
    """Something that a dead run left; `ending` is the participle for what happens to it ("deleted"), `problem` why not."""

    what: str
    why: str
    ending: str
    problem: str | None = None

    def describe(self, *, dry_run: bool = False) -> str:
        """One line for people."""
        return f"{self.what}: {self.why}: {self.problem or (f'would be {self.ending}' if dry_run else self.ending)}"


class ProjectPool(Pool, Protocol):
    """The pool of a project's configuration. The defaults are for workers that end with their driver."""

    outlives_driver: bool = False
    """True when a dead driver can leave workers or rounds behind, so that the janitor must look for them."""

    def worker_spec(self, image: RuntimeImage, sources: Path) -> WorkerSpec:
        """The spec of workers in a runtime image, or in the pool's own, that run tests of the backend's sources."""

    def run_lock(self, run_dir: Path, cards_lock: Path) -> tuple[Path, str]:
        """The lock file that a run holds, and what it guards, for messages: the cards, which are for one run at a time."""
        return cards_lock, "the cards"

    def remove_leftovers(self, ended_at: EndedAt, *, dry_run: bool = False) -> list[Leftover]:
        """Remove what dead runs left behind, and return it; with `dry_run` only return it. Raises `PoolError`."""
        return []

    def docker_options(self, card: str) -> tuple[str, ...] | None:
        """The options of `docker run` for a worker on a card (or group); None when workers need no container."""
        return None


def clear_leftovers(pool: ProjectPool, leases: Path, ended_at: EndedAt, *, dry_run: bool = False) -> list[Leftover]:
    """Pause instances whose lease has run out, and remove the pool's leftovers. Raises `PoolError`."""
    found = []
    for lease in enforce_leases(leases, dry_run=dry_run):
        why = f"its lease ran out at {lease.expired_at:%Y-%m-%d %H:%M:%S} UTC"
        found.append(Leftover(f"instance of {lease.lease}", why, "paused", lease.problem))
    return found + pool.remove_leftovers(ended_at, dry_run=dry_run)
