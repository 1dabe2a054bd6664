"""A worker's view of a round in a folder shared by all workers. `signed_round.py` has the same for workers without one."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from . import round_folder
from .claims import Claims, FolderClaims
from .events import EventLog
from .round_folder import PlannedBatch


class FolderRound:
    """A round in a folder. `host` is the card's machine; `folder` belongs to this worker alone; the driver reads `log`."""

    def __init__(self, folder: Path, worker: str, card: str, rank: int) -> None:
        """Join under a name that no worker has had. Raises `OSError` or `ValueError` when there is no such round."""
        self.worker, self.card, self.rank, self.host = worker, card, rank, os.uname().nodename
        self.folder = folder / round_folder.WORKERS / worker
        self.folder.mkdir(parents=True, exist_ok=True)
        self._alive = lock_file(self.folder / round_folder.ALIVE)
        self.plan = round_folder.plan_of(json.loads((folder / round_folder.PLAN).read_text("utf-8")))
        self.claims: Claims = FolderClaims(folder / round_folder.CLAIMS, worker)
        self.log = EventLog(self.folder / round_folder.EVENTS)
        self._round_folder = folder
        self._seen: set[str] = set()  # files of requeued batches

    def requeued(self) -> Sequence[PlannedBatch]:
        """Return the batches that the driver has requeued since the last call."""
        folder = self._round_folder / round_folder.REQUEUED
        fresh = sorted({path.name for path in folder.glob("*.json")} - self._seen)
        self._seen.update(fresh)
        return [round_folder.batch_of(record) for name in fresh for record in json.loads((folder / name).read_text("utf-8"))]

    def is_over(self) -> bool:
        """True if the driver has announced that there will be no more batches."""
        return (self._round_folder / round_folder.ROUND_OVER).exists()

    def close(self) -> None:
        """Leave the round; the events are in the folder already."""
        self._alive.close()


def lock_file(path: Path) -> IO[bytes]:
    """Lock a file until the returned file is closed or this process ends. Raises `BlockingIOError`."""
    file = path.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file
