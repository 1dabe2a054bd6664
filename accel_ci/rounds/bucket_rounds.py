"""Rounds that are kept in a bucket: for pools whose workers share no folder with the driver."""

from __future__ import annotations

from pathlib import Path

from accel_ci.rounds.bucket_sync import BucketSync
from accel_ci.rounds.round_bucket import RoundStore
from accel_ci.rounds.round_record import RoundRecord


class BucketRounds:
    """The rounds of one run in a bucket."""

    def __init__(self, store: RoundStore, run: str) -> None:
        """`run` names the run among others in the store: equal for a step that is tried again."""
        self._store, self._run = store, run
        self._couriers: dict[Path, BucketSync] = {}

    def open(self, folder: Path) -> RoundRecord:
        """The record of the round in `folder`, with a bucket sync."""
        self._couriers[folder] = BucketSync(folder, self._store.of_round(f"{self._run}/{folder.name}"))
        return RoundRecord(folder, self._couriers[folder])

    def bucket_sync(self, folder: Path) -> BucketSync:
        """The bucket sync of a round that was opened."""
        return self._couriers[folder]
