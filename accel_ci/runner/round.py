"""A round as one worker sees it, and the kind of round that is in a folder shared by all workers.

`Round` separates the supervisor from the place where a round is kept. The round of workers that share no folder is in
`signed_round.py`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from . import round_folder
from .claims import Claims, FolderClaims
from .events import EventLog
from .round_folder import PlannedBatch, RoundPlan


class Round(Protocol):
    """A worker's view of its round.

    `host` is the machine of the card, `folder` belongs to this worker alone. The driver receives what is written to `log`.
    """

    worker: str
    card: str
    rank: int
    host: str
    plan: RoundPlan
    claims: Claims
    folder: Path
    log: EventLog

    def requeued(self) -> Sequence[PlannedBatch]:
        """The batches that the driver has requeued since the last call."""

    def is_over(self) -> bool:
        """Whether the driver has announced that there will be no more batches."""

    def close(self) -> None:
        """Send the driver the rest of the events and leave the round; may be called again."""


class FolderRound:
    """A round in a folder; see `Round`."""

    def __init__(self, folder: Path, worker: str, card: str, rank: int) -> None:
        """Join under a name that no worker has had. Raises `OSError` or `ValueError` when there is no such round."""
        self.worker, self.card, self.rank, self.host = worker, card, rank, os.uname().nodename
        self.folder = folder / round_folder.WORKERS / worker
        self.folder.mkdir(parents=True, exist_ok=True)
        self._alive = lock_file(self.folder / round_folder.ALIVE)
        self.plan = round_folder.plan_of(_read(folder / round_folder.PLAN))
        self.claims: Claims = FolderClaims(folder / round_folder.CLAIMS, worker)
        self.log = EventLog(self.folder / round_folder.EVENTS)
        self._round_folder = folder
        self._seen: set[str] = set()  # files of requeued batches

    def requeued(self) -> Sequence[PlannedBatch]:
        """See `Round`."""
        folder = self._round_folder / round_folder.REQUEUED
        fresh = sorted({path.name for path in folder.glob("*.json")} - self._seen)
        self._seen.update(fresh)
        return [round_folder.batch_of(record) for name in fresh for record in _read(folder / name)]

    def is_over(self) -> bool:
        """See `Round`."""
        return (self._round_folder / round_folder.ROUND_OVER).exists()

    def close(self) -> None:
        """See `Round`; the events are in the folder already."""
        self._alive.close()


def lock_file(path: Path) -> IO[bytes]:
    """Lock a file until the returned file is closed or this process ends. Raises `BlockingIOError`."""
    file = path.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))
