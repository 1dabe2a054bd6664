"""The news that the driver publishes in a bucket for the workers of a round."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel_ci.rounds.round_bucket import RoundBucket, packed
from accel_ci.runner import round_folder

_CHANGE_S = 60
"""The news changes at least this often, in seconds, so that workers can tell that the driver is alive."""


class BucketNews:
    """Publishes the owners of batches, the requeued batches of the folder, and whether the round is over."""

    def __init__(self, bucket: RoundBucket, folder: Path) -> None:
        """Publish nothing yet."""
        self._bucket, self._folder = bucket, folder
        self._requeued: dict[str, list[dict[str, Any]]] = {}  # the batches of each file, with the URLs to claim them
        self._published = b""

    def publish(self, owners: Mapping[str, str]) -> None:
        """Publish the news if it has changed; `owners` is batch id to owner."""
        for path in sorted((self._folder / round_folder.REQUEUED).glob("*.json")):
            if path.name not in self._requeued:
                content = path.read_bytes()
                self._bucket.put(f"requeued/{path.name}", content)
                signer = self._bucket.signer()
                self._requeued[path.name] = [
                    {**record, "claim_urls": signer.claim(f"claims/{record['id']}")} for record in json.loads(content)
                ]
        claimed: defaultdict[str, list[str]] = defaultdict(list)
        for batch, owner in list(owners.items()):  # another thread may add to them
            claimed[owner].append(batch)
        requeued = [record for records in self._requeued.values() for record in records]
        over = (self._folder / round_folder.ROUND_OVER).exists()
        news = packed({"claimed": claimed, "requeued": requeued, "over": over, "beat": int(time.time() // _CHANGE_S)})
        if news != self._published:
            self._bucket.put("news", news)
            self._published = news
