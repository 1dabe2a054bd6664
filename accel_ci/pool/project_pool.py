"""The pool of a project, which does more than run rounds: worker specs, locks, leftovers and reproduction.

Code outside of the pools asks these methods and never for the pool's kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from accel_ci.model import RuntimeImage, WorkerSpec
from accel_ci.rounds.engine import Pool

EndedAt = Callable[[str], float | None]
"""When a run ended, in seconds since the epoch; None for one that has not ended or is unknown."""


@dataclass(frozen=True)
class Leftover:
    """Something that a dead run left behind, and how that is known.

    `ending` is the participle for what happens to it ("deleted"), `problem` why that failed.
    """

    what: str
    why: str
    ending: str
    problem: str | None = None

    def describe(self, *, dry_run: bool = False) -> str:
        """One line for people."""
        return f"{self.what}: {self.why}: {self.problem or (f'would be {self.ending}' if dry_run else self.ending)}"


class ProjectPool(Pool, Protocol):
    """The pool of a project's configuration."""

    outlives_driver: bool
    """True when a dead driver can leave workers or rounds behind, so that the janitor must look for them."""

    def worker_spec(self, image: RuntimeImage, sources: Path) -> WorkerSpec:
        """The spec of workers in a runtime image, or in the pool's own, that run tests of the backend's sources."""

    def run_lock(self, run_dir: Path, cards_lock: Path) -> tuple[Path, str]:
        """The lock file that a run holds, and what it guards, for messages."""

    def remove_leftovers(self, ended_at: EndedAt, *, dry_run: bool = False) -> list[Leftover]:
        """Remove what dead runs left behind, and return it; with `dry_run` only return it. Raises `PoolError`."""

    def docker_options(self, card: str) -> tuple[str, ...] | None:
        """The options of `docker run` for a worker on a card (or group); None when workers need no container."""
