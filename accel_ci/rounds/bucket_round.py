"""A round that is kept in a bucket as well, for pools whose workers share no folder with the driver."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from accel_ci.model import Batch, Limits, WorkerSpec
from accel_ci.rounds.bucket_sync import BucketSync
from accel_ci.rounds.folder_round import FolderRound
from accel_ci.rounds.round_bucket import RoundBucket
from accel_ci.runner.claims import Claims


class BucketRound(FolderRound):
    """The folder of one round and its bucket, which `sync` keeps alike. The bucket decides claims."""

    def __init__(self, path: Path, bucket: RoundBucket) -> None:
        """Neither the folder nor the bucket's objects need to exist."""
        super().__init__(path)
        self.sync = BucketSync(path, bucket)

    @cached_property
    def _claims(self) -> Claims:
        return self.sync.claims()

    def prepare(self, number: int, batches: Sequence[Batch], spec: WorkerSpec, limits: Limits, urgent: int) -> bool:
        """Write the plan, and bring all that the bucket has of it into the folder."""
        fresh = super().prepare(number, batches, spec, limits, urgent)
        self.sync.open()
        return fresh

    def await_old_workers(self) -> bool:
        """Wait for workers of an earlier driver on this machine to end, then fetch the last that they sent."""
        waited = super().await_old_workers()
        if waited:
            self.sync.catch_up()
        return waited

    def finish(self, makespan_s: float) -> None:
        """Record in the folder and in the bucket that the round is done."""
        super().finish(makespan_s)
        self.sync.finish()
