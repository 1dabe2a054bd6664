"""A round as one worker sees it, and the kind that lies in a folder which all workers share.

Here belongs the seam between the supervisor and where a round is kept; the round of workers without a common folder is in
`signed_round.py`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol

from . import round_folder
from .claims import Claims, FolderClaims
from .events import EventLog
from .round_folder import PlannedBatch, RoundPlan


class Round(Protocol):
    """What a worker knows of its round and what it can do to it.

    `host` is the machine that the card is in. `own` is a folder of the worker's alone. What is written to `log` reaches the
    driver.
    """

    worker: str
    card: str
    rank: int
    host: str
    plan: RoundPlan
    claims: Claims
    own: Path
    log: EventLog

    def requeued(self) -> Sequence[PlannedBatch]:
        """The batches that the driver has requeued since the last call."""

    def is_over(self) -> bool:
        """Whether the driver said that nothing more will come."""

    def close(self) -> None:
        """Bring what is still here to the driver, and let go of the round; may be called again."""


class FolderRound:
    """A round in a folder; see `Round`."""

    def __init__(self, folder: Path, worker: str, card: str, rank: int) -> None:
        """Take part under a name that no worker has had. Raises `OSError` or `ValueError` when there is no such round."""
        self.worker, self.card, self.rank, self.host = worker, card, rank, os.uname().nodename
        self.own = folder / round_folder.WORKERS / worker
        self.own.mkdir(parents=True, exist_ok=True)
        self._alive = hold(self.own / round_folder.ALIVE)
        self.plan = round_folder.read_plan(folder)
        self.claims: Claims = FolderClaims(folder / round_folder.CLAIMS, worker)
        self.log = EventLog(self.own / round_folder.EVENTS)
        self._folder = folder
        self._requeued = round_folder.Requeued(folder)

    def requeued(self) -> Sequence[PlannedBatch]:
        """See `Round`."""
        return self._requeued.fresh()

    def is_over(self) -> bool:
        """See `Round`."""
        return round_folder.is_over(self._folder)

    def close(self) -> None:
        """See `Round`: all is in the folder already."""
        self._alive.close()


def hold(path: Path) -> IO[bytes]:
    """Lock a file for as long as it is open, be it until this process is killed. Raises `BlockingIOError`."""
    file = path.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file
