"""The records of workers in a round's bucket: claims of slots, by which they become workers, of batches, and events."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accel_ci.rounds.claim_record import ClaimRecord
from accel_ci.rounds.folder_round import DRIVER
from accel_ci.rounds.round_bucket import RoundBucket, packed
from accel_ci.runner import round_folder
from accel_ci.runner.signed_round import chunk_name
from accel_ci.storage.archive import gunzip

_INVITATION_BYTES = 1 << 28

_WORKERS_PER_SECOND = 256
_MOST_CLAIM_BYTES = 4096
_MOST_EVENT_BYTES = 8 << 30  # of one worker; one that writes more falls silent for the driver, which ends it
_CHUNK = re.compile(rf"(w\d+-\d+)/{round_folder.EVENT_CHUNKS}/(\d{{12}})")


class BatchClaims(ClaimRecord):
    """The driver's claims in a bucket, copied to a folder."""

    def __init__(self, bucket: RoundBucket, folder: Path) -> None:
        """Copy claims to `folder`, which exists."""
        super().__init__(folder)
        self._bucket = bucket
        self._fetched: set[str] = set()

    def take(self, batch: str, owner: str) -> bool:
        """Claim a batch; False when it has an owner."""
        won = self._bucket.create(f"claims/{batch}", owner.encode())
        self.fetch()
        return won

    def taken(self) -> dict[str, str]:
        """Fetch new claims and return the owners of batches by batch id."""
        self.fetch()
        return self.fetched()

    def fetched(self) -> dict[str, str]:
        """Return the owners of batches as of the last fetch."""
        return super().taken()

    def fetch(self) -> None:
        """Copy new claims to the folder."""
        with self._lock:
            found = self._bucket.listed("claims/")
            fresh = {batch: found[batch] for batch in found if batch not in self._fetched}
            for batch, content in _contents(self._bucket, "claims/", fresh):
                self._keep(batch, content.decode("ascii", "replace"))
                self._fetched.add(batch)


@dataclass(frozen=True)
class Slot:
    """A worker's place in a round, for the process that claims it; workers that start together differ in `rank`."""

    worker: str
    card: str
    rank: int


class SlotClaims:
    """The slots that are offered; `holders` is worker name to the identity of the process that has claimed the slot."""

    def __init__(self, bucket: RoundBucket, workers: Path) -> None:
        """Make a folder in `workers` for each worker that holds a slot."""
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
        slots = json.loads(gunzip(content, _INVITATION_BYTES))["slots"] if content is not None else []
        return [Slot(slot["worker"], slot["card"], slot["rank"]) for slot in slots]

    def held(self) -> list[tuple[Slot, str]]:
        """The slots that processes hold, with the identity of the process."""
        holders = dict(self.holders)
        return [(slot, holders[name]) for name, slot in self._slots.items() if holders.get(name, DRIVER) != DRIVER]

    def withdraw(self, worker: str) -> bool:
        """Claim a slot for the driver, so that no process gets it; False when a process has it."""
        return self._bucket.create(f"slots/{worker}", json.dumps({"identity": DRIVER}).encode())

    def fetch_holders(self) -> None:
        """Fetch the holders of slots that had none."""
        if len(self.holders) == len(self._slots):
            return
        found = self._bucket.listed("slots/")
        fresh = {name: found[name] for name in found if name in self._slots and name not in self.holders}
        for worker, content in _contents(self._bucket, "slots/", fresh):
            (self._workers / worker).mkdir(exist_ok=True)
            try:
                self.holders[worker] = str(json.loads(content)["identity"])
            except (ValueError, LookupError, TypeError):
                self.holders[worker] = "an unknown process"


def fetch_events(bucket: RoundBucket, workers: Path, worker: str) -> None:
    """Append the chunks that a worker has sent since the last call to its events."""
    with (workers / worker / round_folder.EVENTS).open("ab") as file:
        while file.tell() < _MOST_EVENT_BYTES and (chunk := bucket.get(_name(worker, file.tell()))):
            file.write(chunk)
            file.flush()


def fetch_all_events(bucket: RoundBucket, workers: Path) -> None:
    """Make the folder of workers agree with the bucket."""
    chunks: defaultdict[str, list[int]] = defaultdict(list)
    ends: dict[str, int] = dict.fromkeys(bucket.listed("slots/"), 0)
    for name, item in bucket.listed("workers/").items():
        found = _CHUNK.fullmatch(name)  # workers can write any names there
        if found is not None:
            worker, offset = found[1], int(found[2])
            chunks[worker].append(offset)
            ends[worker] = offset + item["Size"]
    for path in workers.iterdir():
        events = path / round_folder.EVENTS
        if path.name not in ends:
            shutil.rmtree(path)
        elif events.exists() and events.stat().st_size != ends[path.name]:
            events.unlink()  # perhaps cut between two chunks: fetch all of it again
    for worker in ends:
        (workers / worker).mkdir(exist_ok=True)

    def fetch(worker: str) -> None:
        with (workers / worker / round_folder.EVENTS).open("ab") as file:
            end = file.tell()
            for offset in chunks[worker]:
                if offset >= end:
                    file.write(bucket.get(_name(worker, offset)) or b"")

    bucket.map(fetch, list(ends))


def _contents(bucket: RoundBucket, folder: str, found: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    """The contents of claims that were listed; of one that is too long to be a claim, something that names nobody.

    Workers write these objects by signed URLs, which do not limit their size.
    """
    short = [name for name, item in found.items() if item["Size"] <= _MOST_CLAIM_BYTES]
    return bucket.get_all(folder, short) + [(name, b"?") for name in found.keys() - set(short)]


def _name(worker: str, offset: int) -> str:
    return f"workers/{worker}/{round_folder.EVENT_CHUNKS}/{chunk_name(offset)}"
