"""A worker's view of a round whose driver is on this machine. `signed_round.py` has the same for workers far from theirs."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from . import round_folder
from .channel import Channel
from .claims import Claims
from .events import EventLog
from .round_folder import PlannedBatch


class ChannelClaims:
    """Claims that the driver grants; see `claims.Claims`. `refresh` brings its news: claims, requeued batches, the end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._known: dict[str, str] = {}
        self.over = False
        self.requeued: list[Any] = []

    def take(self, batch: str) -> bool:
        """Claim a batch; False when it has an owner."""
        return bool(self._channel.ask("take", batch=batch)["won"])

    def taken(self) -> Mapping[str, str]:
        """Return the owners of batches by batch id, as of the last `refresh`."""
        return self._known

    def refresh(self) -> None:
        """Ask for what is new since the last call."""
        news = self._channel.ask("news")
        self._known.update(news["claimed"])
        self.requeued += news["requeued"]
        self.over = news["over"]


class ChannelRound:
    """A round by a channel. `host` is the card's machine; `folder` belongs to this worker alone; the driver gets `log`."""

    def __init__(self, plan: Path, folder: Path, channel: Channel, worker: str, card: str, host: str, rank: int) -> None:
        """Join with the name that the driver has given. Raises `OSError` or `ValueError` when there is no such plan."""
        self.worker, self.card, self.rank, self.host = worker, card, rank, host
        self.folder = folder
        self.plan = round_folder.plan_of(json.loads(plan.read_text("utf-8")))
        self.log = EventLog(channel.send)
        self._claims = ChannelClaims(channel)
        self.claims: Claims = self._claims
        self._channel = channel

    def requeued(self) -> Sequence[PlannedBatch]:
        """Return the batches that the driver has requeued since the last call."""
        self._claims.refresh()
        fresh, self._claims.requeued = self._claims.requeued, []
        return list(map(round_folder.batch_of, fresh))

    def is_over(self) -> bool:
        """True if the driver has announced that there will be no more batches."""
        self._claims.refresh()
        return self._claims.over

    def close(self) -> None:
        """Leave the round; the driver has the events already."""
        self._channel.close()


def lock_file(path: Path) -> IO[bytes]:
    """Lock a file until the returned file is closed or this process ends. Raises `BlockingIOError`."""
    file = path.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file
