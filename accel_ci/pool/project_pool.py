"""The pool of a project, which does more than run rounds: worker specs, locks, leftovers and reproduction.

Code outside of the pools asks these methods and never for the pool's kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from accel_ci.model import RuntimeImage, WorkerPod, WorkerSpec
from accel_ci.rounds.engine import Pool

IsOver = Callable[[str], bool | None]
"""Returns True for a run that has ended, None for one that is unknown."""


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


def own_lock(run_dir: Path) -> tuple[Path, str]:
    """The lock of a run that shares nothing with others but its folder, and what it guards."""
    return run_dir.with_name(f".{run_dir.name}.lock"), str(run_dir)


def card_variable(spec: WorkerSpec, card: str) -> dict[str, str]:
    """The variable by which a worker's processes see its card, or cards; none where nothing selects them."""
    return {spec.card_environment: card} if spec.card_environment else {}


class ProjectPool(Pool, Protocol):
    """The pool of a project's configuration. The defaults are for workers that end with their driver."""

    outlives_driver: bool = False
    """True when a dead driver can leave workers or rounds behind, so that the janitor must look for them."""

    def check(self) -> str | None:
        """Check what the pool needs from outside of this program, in seconds; return it in a few words, None for nothing.

        Raises `PoolError` with what is missing and what to do.
        """
        return None

    def worker_spec(self, image: RuntimeImage, sources: Path) -> WorkerSpec:
        """The spec of workers in a runtime image, or in the pool's own, that run tests of the backend's sources."""

    def run_lock(self, run_dir: Path, cards_lock: Path) -> tuple[Path, str]:
        """The lock file that a run holds, and what it guards, for messages: the cards, which are for one run at a time."""
        return cards_lock, "the cards"

    def remove_leftovers(self, is_over: IsOver, build: str = "", *, dry_run: bool = False) -> list[Leftover]:
        """Remove what dead runs left running, and return it; with `dry_run` only return it. Raises `PoolError`.

        What dead runs of `build` left is spared: its rounds take it up or end it.
        """
        return []

    def remove_old(self, *, dry_run: bool = False) -> list[Leftover]:
        """Remove the records of dead runs that nobody can take up any more, and return them. Raises `PoolError`."""
        return []

    def pods(self) -> list[WorkerPod]:
        """The pods that workers of this driver's rounds were; none in a pool without pods."""
        return []

    def docker_options(self, card: str) -> tuple[str, ...] | None:
        """The options of `docker run` for a worker on a card (or group); None when workers need no container."""
        return None
