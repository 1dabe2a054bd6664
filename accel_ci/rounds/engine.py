"""What the driver asks of a pool, whatever its engine: processes, containers or pods.

A pool starts a worker group, one worker per card, for one round. All that a worker has to say is in the round's folder; the
worker group tells which workers there are and which have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from accel_ci.model import WorkerSpec
from accel_ci.process.run import Finished
from accel_ci.rounds.round_record import RoundRecord

DRIVER_LOCK = "driver.lock"
"""The file in a run's folder that the driver holds the lock of as long as it lives."""


def group_name(cards: Sequence[str]) -> str:
    """How cards that one worker holds together are written, also in the variable that tells a process its cards."""
    return ",".join(cards)


def groups_of(cards: Sequence[str], width: int) -> list[str]:
    """The cards in groups of `width`, by name; what is left over is in none."""
    return [group_name(cards[begin : begin + width]) for begin in range(0, len(cards) - width + 1, width)]


def cards_in(name: str) -> tuple[str, ...]:
    """The cards of a group, or the one card."""
    return tuple(name.split(","))


ENDED_WELL = frozenset({"exit code 0", "Completed", "the round is over"})
"""The words of engines for an end that speaks against nobody."""


@dataclass(frozen=True)
class WorkerState:
    """A worker of a worker group on its card or group of cards.

    `ended` says how it ended in the engine's words, None while it runs.
    """

    name: str
    card: str
    ended: str | None


class WorkerGroup(Protocol):
    """The workers of one round."""

    def workers(self) -> Sequence[WorkerState]:
        """All workers that were started, in that order."""

    def replace(self, worker: str) -> None:
        """Start one more worker on the card of a worker that has ended."""

    def stop(self, worker: str) -> None:
        """End one worker and its descendants."""

    def close(self) -> None:
        """End all workers and their descendants and give their cards back; may be called again."""


class Pool(Protocol):
    """An engine that runs workers."""

    def open_round(self, folder: Path) -> RoundRecord:
        """The driver's record of the round in `folder`, kept where the pool's workers find it."""

    def start(self, folder: Path, cards: Sequence[str], spec: WorkerSpec, attempt: int) -> WorkerGroup:
        """Start a worker on each card for the round in `folder`.

        `attempt` counts the drivers that have worked on this round before; worker names begin with `w<attempt>-`.
        Each entry of `cards` is a card or a group of them (`group_name`). Raises `PoolError` when workers cannot be started.
        """

    def clear(self, run_dir: Path) -> None:
        """End what the worker groups of an earlier driver left running for the rounds in `run_dir`. Raises `PoolError`."""

    def forget(self, run_dir: Path) -> None:
        """Delete what is kept outside of the folder of a run that is over. Raises `PoolError`."""

    def execute(self, command: Sequence[str], spec: WorkerSpec, folder: Path, timeout_s: float) -> Finished:
        """Run a command to its end where workers run, with the sources to read and `folder` to write, without a card.

        Raises `AccelCiError` when it cannot be started or is past its limit.
        """
