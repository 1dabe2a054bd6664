"""The slots of a round in a bucket: an invitation offers them, and processes claim them to become workers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from accel_ci.rounds.folder_round import DRIVER
from accel_ci.rounds.round_bucket import RoundBucket, packed

_WORKERS_PER_SECOND = 256


@dataclass(frozen=True)
class Slot:
    """A worker's place in a round, for the process that claims it; workers that start together differ in `rank`."""

    worker: str
    card: str
    rank: int


class BucketSlots:
    """The slots that are offered; `holders` is worker name to the identity of the process that has claimed the slot."""

    def __init__(self, bucket: RoundBucket, workers: Path) -> None:
        """Offer nothing yet. Workers that hold a slot get a folder in `workers`."""
        self.holders: dict[str, str] = {}
        self._bucket, self._workers = bucket, workers
        self._slots: dict[str, Slot] = {}

    @property
    def every_s(self) -> float:
        """The seconds between two uploads, and between two readings, of a worker; they grow with the number of slots."""
        return max(1.0, len(self._slots) / _WORKERS_PER_SECOND)

    def offer(self, slots: Iterable[Slot]) -> None:
        """Offer more slots: publish the invitation with all of them."""
        self._slots.update({slot.worker: slot for slot in slots})
        signer = self._bucket.signer()
        invitation = {
            "slots": [{**asdict(slot), "claim_urls": signer.claim(f"slots/{slot.worker}")} for slot in self._slots.values()],
            **{name: signer.get(name) for name in ("plan", "claim_urls", "news")},
            "form": self._bucket.form("workers/"),
            "every_s": self.every_s,
        }
        self._bucket.put("invitation", packed(invitation))

    def offered(self) -> list[Slot]:
        """Read the slots of the invitation in the bucket, which may be an earlier driver's."""
        content = self._bucket.get("invitation")
        slots = json.loads(gzip.decompress(content))["slots"] if content is not None else []
        return [Slot(slot["worker"], slot["card"], slot["rank"]) for slot in slots]

    def withdraw(self, worker: str) -> bool:
        """Claim a slot for the driver, so that no process gets it; False when a process has it."""
        return self._bucket.create(f"slots/{worker}", json.dumps({"identity": DRIVER}).encode())

    def fetch_holders(self) -> None:
        """Fetch the holders of slots that had none."""
        if len(self.holders) == len(self._slots):
            return
        fresh = [name for name in self._bucket.sizes("slots/") if name in self._slots and name not in self.holders]
        for worker, content in zip(fresh, self._bucket.get_all("slots/", fresh), strict=True):
            if content is not None:
                (self._workers / worker).mkdir(exist_ok=True)
                self.holders[worker] = _identity(content)


def _identity(content: bytes) -> str:
    """Read the identity of a slot's holder."""
    try:
        return str(json.loads(content)["identity"])
    except (ValueError, LookupError, TypeError):
        return "an unknown process"
