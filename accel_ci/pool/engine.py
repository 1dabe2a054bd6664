"""What the driver asks of a pool, whatever its engine: processes, containers or pods.

A pool starts a crew, one worker per card, for one round. All that a worker has to say is in the round's folder; the
crew tells which workers there are and which have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from accel_ci.model import Launch


@dataclass(frozen=True)
class WorkerState:
    """A worker of a crew; `ended` says how it ended in the engine's words, None while it runs."""

    name: str
    card: str
    ended: str | None


class Crew(Protocol):
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

    def start(self, folder: Path, cards: Sequence[str], launch: Launch, attempt: int) -> Crew:
        """Start a worker on each card for the round in `folder`.

        `attempt` counts the drivers that have worked on this round before; worker names begin with `w<attempt>-`.
        Raises `PoolError` when workers cannot be started.
        """
