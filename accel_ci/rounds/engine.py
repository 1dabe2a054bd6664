"""The driver's view of a pool and its rounds, whatever the engine: processes, containers or pods.

A pool starts a worker group for a round, one worker per card. Workers report through the round alone; the worker group
knows which workers there are and how they ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from accel_ci.model import WorkerSpec
from accel_ci.process.run import Finished
from accel_ci.rounds.folder_round import FolderRound


def groups_of(cards: Sequence[str], width: int) -> list[str]:
    """The names (`0,1`) of groups of `width` cards that one worker holds; cards left over are in no group."""
    return [",".join(cards[begin : begin + width]) for begin in range(0, len(cards) - width + 1, width)]


def cards_in(name: str) -> tuple[str, ...]:
    """The cards of a group, or the one card."""
    return tuple(name.split(","))


@dataclass(frozen=True)
class WorkerEnd:
    """The end of a worker: code decides by `kind`, people read `detail`, which comes from the engine.

    `finished`: it ran to its end. `not_needed`: the round was over before it began. `failed`: it exited with an error.
    `killed`: by a signal. `removed`: from outside (deleted, evicted, preempted, its node lost). `not_started`: it never ran.
    """

    kind: Literal["finished", "not_needed", "failed", "killed", "out_of_memory", "removed", "deadline", "not_started"]
    detail: str

    @property
    def is_loss(self) -> bool:
        """True when the worker ended before its work did."""
        return self.kind not in ("finished", "not_needed")

    @property
    def may_be_by_a_test(self) -> bool:
        """True when a test that was running can have ended the worker, as far as the engine knows."""
        return self.kind in ("failed", "killed", "out_of_memory")

    def __str__(self) -> str:
        return self.detail


def end_of_process(code: int) -> WorkerEnd:
    """The end of a process by its exit code; a signal is negative, as `subprocess` reports it."""
    if code < 0:
        return WorkerEnd("killed", f"signal {-code}")
    return WorkerEnd("failed" if code else "finished", f"exit code {code}")


@dataclass(frozen=True)
class WorkerState:
    """A worker on its card or group of cards; `end` is None while it runs."""

    name: str
    card: str
    end: WorkerEnd | None


class WorkerGroup(Protocol):
    """The workers of one round."""

    def workers(self) -> Sequence[WorkerState]:
        """All workers that were started, in that order."""

    def replace(self, worker: str) -> None:
        """Start another worker on the card of one that has ended."""

    def stop(self, worker: str) -> None:
        """End one worker and its descendants."""

    def close(self) -> None:
        """End all workers and their descendants and release their cards; may be called again."""


class Pool(Protocol):
    """An engine that runs workers. The defaults are for workers that share the driver's folder and end with it."""

    def open_round(self, folder: Path) -> FolderRound:
        """The round in `folder`, kept where the pool's workers find it."""
        return FolderRound(folder)

    def start(self, record: FolderRound, cards: Sequence[str], spec: WorkerSpec, attempt: int) -> WorkerGroup:
        """Start a worker on each card for a round that `open_round` has opened.

        `attempt` counts earlier drivers of this round; worker names begin with `w<attempt>-`. Each entry of `cards` is a
        card or a group (`groups_of`). Raises `PoolError` when workers cannot be started.
        """

    def clear(self, run_dir: Path) -> None:
        """End what an earlier driver left running for the rounds in `run_dir`. Raises `PoolError`."""
        return

    def end_round(self, folder: Path) -> None:
        """End what an earlier driver left running for a round that needs no workers any more. Raises `PoolError`."""
        return

    def forget(self, run_dir: Path) -> None:
        """Delete what a finished run keeps outside of its folder. Raises `PoolError`."""
        return

    def execute(self, command: Sequence[str], spec: WorkerSpec, folder: Path, timeout_s: float) -> Finished:
        """Run a command where workers run, without a card; it can read the sources and write to `folder`.

        Raises `AccelCiError` when it cannot be started or exceeds its limit.
        """
