"""The driver's view of a pool and its rounds, whatever the engine: processes, containers or pods.

A pool starts a worker group for a round, one worker per card. Workers report through the round alone; the worker group
knows which workers there are and how they ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from accel_ci.model import Batch, Limits, WorkerSpec
from accel_ci.process.run import Finished
from accel_ci.rounds.events import Event


def group_name(cards: Sequence[str]) -> str:
    """The name of a group of cards that one worker holds, as in the variable that names a process's cards."""
    return ",".join(cards)


def groups_of(cards: Sequence[str], width: int) -> list[str]:
    """The names of groups of `width` cards; cards left over are in no group."""
    return [group_name(cards[begin : begin + width]) for begin in range(0, len(cards) - width + 1, width)]


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


class Round(Protocol):
    """The driver's view of one round. Everything the driver knows is in it, so a restarted driver can continue."""

    path: Path
    """The round's folder on the driver's machine."""

    def prepare(self, number: int, batches: Sequence[Batch], spec: WorkerSpec, limits: Limits, urgent: int) -> bool:
        """Write the plan, unless the same one is there already; return whether it was written."""

    def batches(self) -> list[Batch]:
        """The batches of the plan and the requeued ones."""

    def workers(self) -> list[str]:
        """The names of all workers that the round has had, in the order of their start."""

    def await_old_workers(self) -> bool:
        """Wait for workers of an earlier driver on this machine to end; return whether there were any.

        Raises `PoolError` after a minute.
        """

    def events(self, worker: str) -> list[Event]:
        """The complete events that a worker has written since the last call."""

    def log(self, worker: str) -> str:
        """The end of a worker's output."""

    def claimed(self) -> dict[str, str]:
        """The owners of claimed batches, by batch id."""

    def withdraw(self, batch: str) -> bool:
        """Claim a batch for the driver, so that no worker gets it; False when a worker has it."""

    def requeue(self, batches: Iterable[Batch]) -> list[Batch]:
        """Hand batches out again, under new ids and before all others; return them."""

    def end(self) -> None:
        """Announce to the workers that no more batches will come."""

    def finish(self, makespan_s: float) -> None:
        """Record that the round is done."""

    def finished(self) -> float | None:
        """The makespan in seconds when the round is done, else None."""


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
    """An engine that runs workers."""

    def open_round(self, folder: Path) -> Round:
        """The round in `folder`, kept where the pool's workers find it."""

    def start(self, folder: Path, cards: Sequence[str], spec: WorkerSpec, attempt: int) -> WorkerGroup:
        """Start a worker on each card for the round in `folder`, which `open_round` has opened.

        `attempt` counts earlier drivers of this round; worker names begin with `w<attempt>-`. Each entry of `cards` is a
        card or a group (`group_name`). Raises `PoolError` when workers cannot be started.
        """

    def clear(self, run_dir: Path) -> None:
        """End what an earlier driver left running for the rounds in `run_dir`. Raises `PoolError`."""

    def forget(self, run_dir: Path) -> None:
        """Delete what a finished run keeps outside of its folder. Raises `PoolError`."""

    def execute(self, command: Sequence[str], spec: WorkerSpec, folder: Path, timeout_s: float) -> Finished:
        """Run a command where workers run, without a card; it can read the sources and write to `folder`.

        Raises `AccelCiError` when it cannot be started or exceeds its limit.
        """
