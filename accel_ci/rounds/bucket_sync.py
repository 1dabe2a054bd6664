"""Keep a round's folder and its objects in a bucket alike, for workers that share no folder with the driver.

The driver knows its folder alone. What the driver writes there (plan, batches requeued, the end) the bucket sync publishes;
what workers leave in the bucket (slots and batches claimed, events) it brings into the folder. The bucket is the truth: a
driver that starts again, be it on an empty folder, has from it all that the one before knew.

All is below the plan's digest, so that a worker of another plan finds nothing to spoil:

    plan, claim_urls, news, invitation    for workers; see `accel_ci.runner.signed_round`
    claims/<batch>, slots/<worker>        who has it
    requeued/<n>.json                    batches of lost workers, given out again; workers hear of them by the news
    workers/<worker>/events/<offset>      a worker's events, in chunks named by where they begin
    report                                the driver's word that the round is done
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_ci.errors import PoolError
from accel_ci.rounds.round_bucket import CONNECTIONS, RoundBucket
from accel_ci.runner import round_folder
from accel_ci.runner.claims import FolderClaims
from accel_ci.runner.upload import chunk_name

_CHUNK = re.compile(rf"(w\d+-\d+)/{round_folder.EVENT_CHUNKS}/(\d{{12}})")

DRIVER = "driver"
"""The owner of what the driver has claimed to keep it from workers."""

REPORT = "report.json"
_WORKERS_PER_SECOND = 256
_LAST_PATIENCE_S = 60.0
_BEAT_S = 60
"""How often the news change at least, in seconds: by that workers know that there is a driver."""


@dataclass(frozen=True)
class Slot:
    """A worker's place in a round, for whichever process claims it; those that start together have a `rank` each."""

    worker: str
    card: str
    rank: int


class BucketSync:
    """Between one round's folder and its bucket. Methods raise `PoolError` when the bucket stays away or refuses."""

    def __init__(self, folder: Path, bucket: RoundBucket) -> None:
        """Nothing is read or written yet."""
        self.folder, self._root, self._bucket = folder, bucket, bucket
        self.trouble: PoolError | None = None
        self.plan_digest = ""
        self._slots: dict[str, Slot] = {}
        self._extras: dict[str, Any] = {}
        self._holders: dict[str, str] = {}
        self._claimed: dict[str, str] = {}
        self._claims_lock = threading.Lock()
        self._news: bytes | None = None
        self._requeued_urls: dict[str, tuple[str, str]] = {}
        self._cycle = self._cycle_done = 0
        self._asked: dict[str, int] = {}
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    # --- the driver's part --------------------------------------------------------------------------------------

    def open(self) -> None:
        """Have the folder and the bucket agree on the plan, and bring all that the bucket has of it into the folder."""
        plan = (self.folder / round_folder.PLAN).read_bytes()
        self.plan_digest = hashlib.sha256(plan).hexdigest()[:16]
        self._bucket = self._root.below(self.plan_digest)
        known = self._bucket.get("plan") is not None
        if known:
            self.catch_up()
        else:
            self._root.clear()
        signer = self._bucket.signer()  # anew each time: those of an earlier driver may expire before this one is done
        urls = {batch["id"]: signer.claim(f"claims/{batch['id']}") for batch in json.loads(plan)["batches"]}
        self._bucket.put("claim_urls", _packed(urls))
        if not known:
            self._bucket.put("plan", plan)

    def catch_up(self) -> None:
        """Bring everything into the folder, whatever of it is there already."""
        report = self._bucket.get("report")
        if report is not None:
            (self.folder / REPORT).write_bytes(report)
        requeued = self._bucket.sizes("requeued/")
        for name in requeued:
            content = self._bucket.get(f"requeued/{name}")
            if content is not None:
                (self.folder / round_folder.REQUEUED / name).write_bytes(content)
        chunks: dict[str, list[int]] = {worker: [] for worker in self._bucket.sizes("slots/")}
        ends: dict[str, int] = dict.fromkeys(chunks, 0)
        for name, size in self._bucket.sizes("workers/").items():
            found = _CHUNK.fullmatch(name)  # workers can write there what they like
            if found is not None:
                worker, offset = found[1], int(found[2])
                chunks.setdefault(worker, []).append(offset)
                ends[worker] = offset + size
        for path in (self.folder / round_folder.WORKERS).iterdir():
            events = path / round_folder.EVENTS
            if path.name not in ends:
                shutil.rmtree(path)
            elif events.exists() and events.stat().st_size != ends[path.name]:
                # Torn between two chunks, perhaps: what is in the bucket is read again.
                events.unlink()
        with ThreadPoolExecutor(CONNECTIONS) as crowd:
            self._fetch_claims(crowd)
            list(crowd.map(self._fetch_known_events, chunks, chunks.values()))

    def claims(self) -> BucketClaims:
        """The driver's way to claim batches."""
        return BucketClaims(self)

    def claim(self, batch: str) -> bool:
        """Claim a batch for the driver; False when a worker has it."""
        won = self._bucket.create(f"claims/{batch}", DRIVER.encode())
        self.fetch_claims()
        return won

    def fetch_claims(self) -> None:
        """Bring the claims of now into the folder."""
        with ThreadPoolExecutor(CONNECTIONS) as crowd:
            self._fetch_claims(crowd)

    def finish(self) -> None:
        """Note in the bucket that the round is done, as the folder has it."""
        self._bucket.put("report", (self.folder / REPORT).read_bytes())

    # --- the pool's part ----------------------------------------------------------------------------------------

    def invite(self, slots: Sequence[Slot], **extras: Any) -> str:
        """Offer slots, and start the traffic; gives back the invitation's signed URL. `extras` go into it as they are."""
        self._slots = {slot.worker: slot for slot in slots}
        self._extras = extras
        (self.folder / round_folder.WORKERS).mkdir(exist_ok=True)
        self._publish_news()
        self._publish_invitation()
        self._thread = threading.Thread(target=self._run, name="bucket sync", daemon=True)
        self._thread.start()
        return self._bucket.signer().get("invitation")

    def invited(self) -> list[Slot]:
        """The slots of the invitation that is in the bucket, be it an earlier driver's."""
        content = self._bucket.get("invitation")
        slots = json.loads(gzip.decompress(content))["slots"] if content is not None else []
        return [Slot(slot["worker"], slot["card"], slot["rank"]) for slot in slots]

    def add_slot(self, slot: Slot) -> None:
        """Offer one more slot."""
        self._slots[slot.worker] = slot
        self._publish_invitation()

    def withdraw_slot(self, worker: str) -> bool:
        """Keep a slot from being claimed; False when somebody has it."""
        return self._bucket.create(f"slots/{worker}", json.dumps({"identity": DRIVER}).encode())

    def holders(self) -> Mapping[str, str]:
        """Who has claimed which slot: worker name to the identity of a process. Raises what has ended the traffic."""
        if self.trouble is not None:
            raise self.trouble
        return dict(self._holders)

    def drained(self, worker: str) -> bool:
        """Whether all is in the folder that a worker had sent when this was first asked; ask it of one that has ended."""
        if self.trouble is not None:
            raise self.trouble
        return self._cycle_done >= self._asked.setdefault(worker, self._cycle + 1)

    def close(self) -> None:
        """Bring in what is left and publish the last news; may be called again. Waits a minute for a store that is away."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        self._bucket.hurry(_LAST_PATIENCE_S)
        self._ending.set()
        thread.join()
        if self.trouble is None:
            with ThreadPoolExecutor(CONNECTIONS) as crowd:
                self._tour(crowd)

    def put(self, name: str, content: bytes) -> str:
        """Write an object beside the round's own for its workers; the signed URL that reads it."""
        self._bucket.put(name, content)
        return self._bucket.signer().get(name)

    # --- traffic ------------------------------------------------------------------------------------------------

    @property
    def every_s(self) -> float:
        """How many seconds a worker lets pass between two uploads and between two readings: more with more workers."""
        return max(1.0, len(self._slots) / _WORKERS_PER_SECOND)

    def _run(self) -> None:
        try:
            with ThreadPoolExecutor(CONNECTIONS, "bucket sync") as crowd:
                while not self._ending.is_set():
                    began = time.monotonic()
                    self._tour(crowd)
                    self._ending.wait(max(0.05, self.every_s / 2 - (time.monotonic() - began)))
        except PoolError as error:
            self.trouble = error
        except Exception as error:  # whoever waits for what this thread brings must hear of it
            self.trouble = PoolError(f"the traffic with the bucket has stopped: {type(error).__name__}: {error}")

    def _tour(self, crowd: ThreadPoolExecutor) -> None:
        """Everything once, both ways."""
        self._cycle += 1
        cycle = self._cycle
        self._fetch_holders(crowd)
        self._fetch_claims(crowd)
        list(crowd.map(self._fetch_events, [worker for worker, who in list(self._holders.items()) if who != DRIVER]))
        self._publish_news()
        self._cycle_done = cycle

    def _fetch_holders(self, crowd: ThreadPoolExecutor) -> None:
        if len(self._holders) == len(self._slots):
            return
        fresh = [worker for worker in self._bucket.sizes("slots/") if worker in self._slots and worker not in self._holders]
        for worker, content in zip(fresh, crowd.map(lambda worker: self._bucket.get(f"slots/{worker}"), fresh), strict=True):
            if content is not None:
                self._own_folder(worker)
                self._holders[worker] = _identity(content)

    def _fetch_claims(self, crowd: ThreadPoolExecutor) -> None:
        with self._claims_lock:
            folder = self.folder / round_folder.CLAIMS
            fresh = [batch for batch in self._bucket.sizes("claims/") if batch not in self._claimed]
            for batch, owner in zip(fresh, crowd.map(lambda batch: self._bucket.get(f"claims/{batch}"), fresh), strict=True):
                if owner is not None:
                    part = folder / ".part"
                    part.write_bytes(owner)
                    part.replace(folder / batch)
                    self._claimed[batch] = owner.decode("utf-8", "replace")

    def _fetch_events(self, worker: str) -> None:
        path = self._own_folder(worker) / round_folder.EVENTS
        with path.open("ab") as file:
            offset = file.seek(0, 2)
            while chunk := self._bucket.get(f"workers/{worker}/{round_folder.EVENT_CHUNKS}/{chunk_name(offset)}"):
                file.write(chunk)
                file.flush()
                offset += len(chunk)

    def _fetch_known_events(self, worker: str, chunks: Sequence[int]) -> None:
        """The chunks that are known to be there, in the order of their offsets, after what is in the folder."""
        with (self._own_folder(worker) / round_folder.EVENTS).open("ab") as file:
            offset = file.seek(0, 2)
            for chunk in chunks:
                if chunk >= offset:
                    file.write(self._bucket.get(f"workers/{worker}/{round_folder.EVENT_CHUNKS}/{chunk_name(chunk)}") or b"")

    def _own_folder(self, worker: str) -> Path:
        path = self.folder / round_folder.WORKERS / worker
        path.mkdir(exist_ok=True)
        return path

    # --- publishing ---------------------------------------------------------------------------------------------

    def _publish_invitation(self) -> None:
        signer = self._bucket.signer()
        slots = [
            {
                "worker": slot.worker,
                "card": slot.card,
                "rank": slot.rank,
                "claim_urls": signer.claim(f"slots/{slot.worker}"),
            }
            for slot in list(self._slots.values())
        ]
        urls = {name: signer.get(name) for name in ("plan", "claim_urls", "news")}
        form = self._bucket.form("workers/")
        invitation = {"slots": slots, **urls, "form": form, "every_s": self.every_s, **self._extras}
        self._bucket.put("invitation", _packed(invitation))

    def _publish_news(self) -> None:
        over = (self.folder / round_folder.ROUND_OVER).exists()
        requeued = []
        for path in sorted((self.folder / round_folder.REQUEUED).glob("*.json")):
            content = path.read_bytes()
            records = json.loads(content)
            if records and records[0]["id"] not in self._requeued_urls:
                self._bucket.put(f"requeued/{path.name}", content)
                signer = self._bucket.signer()
                for record in records:
                    self._requeued_urls[record["id"]] = signer.claim(f"claims/{record['id']}")
            requeued += [{**record, "claim_urls": self._requeued_urls[record["id"]]} for record in records]
        claimed: dict[str, list[str]] = {}
        for batch, owner in list(self._claimed.items()):
            claimed.setdefault(owner, []).append(batch)
        beat = int(time.time() // _BEAT_S)
        news = _packed({"claimed": claimed, "requeued": requeued, "over": over, "beat": beat})
        if news != self._news:
            self._bucket.put("news", news)
            self._news = news


class BucketClaims:
    """The driver's claims in a bucket; see `accel_ci.runner.claims.Claims`."""

    def __init__(self, bucket_sync: BucketSync) -> None:
        """Claim for the driver."""
        self._bucket_sync = bucket_sync
        self._mirror = FolderClaims(bucket_sync.folder / round_folder.CLAIMS, DRIVER)

    def take(self, batch: str) -> bool:
        """Claim a batch; False when a worker has it."""
        return self._bucket_sync.claim(batch)

    def taken(self) -> Mapping[str, str]:
        """Who has which batch, batch id to owner, as of now."""
        self._bucket_sync.fetch_claims()
        return self._mirror.taken()


def _identity(content: bytes) -> str:
    """Who has a slot, as the one who claimed it says."""
    try:
        return str(json.loads(content)["identity"])
    except (ValueError, LookupError, TypeError):
        return "somebody who does not say"


def _packed(content: object) -> bytes:
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 6, mtime=0)
