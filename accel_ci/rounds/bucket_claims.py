"""The claims of a round in its bucket, and their copy in the round's folder."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from accel_ci.rounds.folder_round import DRIVER
from accel_ci.rounds.round_bucket import RoundBucket
from accel_ci.runner.claims import FolderClaims
from accel_ci.storage.atomic_file import write_whole_file


class BucketClaims:
    """The driver's claims in a bucket; see `accel_ci.runner.claims.Claims`. `owners` are the claims fetched so far."""

    def __init__(self, bucket: RoundBucket, folder: Path) -> None:
        """Fetch nothing yet. Claims are copied to `folder`, which exists."""
        self.owners: dict[str, str] = {}
        self._bucket, self._folder = bucket, folder
        self._copied = FolderClaims(folder, DRIVER)
        self._lock = threading.Lock()

    def take(self, batch: str) -> bool:
        """Claim a batch for the driver; False when a worker has it."""
        won = self._bucket.create(f"claims/{batch}", DRIVER.encode())
        self.fetch()
        return won

    def taken(self) -> Mapping[str, str]:
        """Fetch new claims and return the owners of batches by batch id."""
        self.fetch()
        return self._copied.taken()

    def fetch(self) -> None:
        """Copy new claims to the folder."""
        with self._lock:
            fresh = [batch for batch in self._bucket.sizes("claims/") if batch not in self.owners]
            for batch, owner in zip(fresh, self._bucket.get_all("claims/", fresh), strict=True):
                if owner is not None:
                    write_whole_file(self._folder / batch, owner)
                    self.owners[batch] = owner.decode("utf-8", "replace")
