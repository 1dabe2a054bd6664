"""A round that is kept in a bucket as well, for pools whose workers share no folder with the driver.

The driver uses only its folder. What it writes there (plan, requeued batches, the end) is published in the bucket; what
workers leave in the bucket (claims of slots and batches, events) is fetched into the folder. The bucket is the truth: a
driver that starts again, even on an empty folder, gets from it all that its predecessor knew.

All objects are below the plan's digest, so that a worker of another plan can do no harm:

    plan, claim_urls, news, invitation    for workers; see `accel_ci.runner.signed_round`
    claims/<batch>, slots/<worker>        their owners
    requeued/<n>.json                     batches of lost workers, to be run by others, who learn of them from the news
    charged/<n>.json                      attempts that lost workers could not record; see `accel_ci.rounds.watch`
    workers/<worker>/events/<offset>      a worker's events, in chunks named by their offsets
    report                                written by the driver when the round is done
"""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from accel_ci.errors import PoolError
from accel_ci.model import Batch, Limits, WorkerSpec
from accel_ci.rounds.bucket_records import BatchClaims, Slot, SlotClaims, fetch_all_events, fetch_events
from accel_ci.rounds.events import Event
from accel_ci.rounds.folder_round import DRIVER, REPORT, FolderRound
from accel_ci.rounds.round_bucket import RoundBucket, packed
from accel_ci.runner import round_folder

_LAST_PATIENCE_S = 60.0
_LAG_S = 300.0  # a store may be away for so long before a worker counts as silent
_NEWS_CHANGE_S = 60  # the news changes at least this often, in seconds, so that workers can tell that the driver is alive


class BucketRound(FolderRound):
    """The folder of one round and its bucket, which decides claims.

    Methods raise `PoolError` when the bucket stays away or refuses. Those for the driver are the folder's; a pool calls
    `invite` to start a thread that keeps folder and bucket alike, and `close` to end it. `prepare` comes first.
    """

    lag_s = _LAG_S
    slots: SlotClaims
    _bucket: RoundBucket

    def __init__(self, path: Path, bucket: RoundBucket) -> None:
        """Neither the folder nor the bucket's objects need to exist."""
        super().__init__(path)
        self._root = bucket
        self.plan_digest = ""
        self._requeued: dict[str, list[dict[str, Any]]] = {}  # the batches of each file, with the URLs to claim them
        self._published = b""
        self._trouble: PoolError | None = None
        self._passes = self._passes_done = 0
        self._needed_passes: dict[str, int] = {}
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    @cached_property
    def _claims(self) -> BatchClaims:
        return BatchClaims(self._bucket, self.path / round_folder.CLAIMS)

    def prepare(self, number: int, batches: Sequence[Batch], spec: WorkerSpec, limits: Limits, urgent: int) -> bool:
        """Write the plan, and bring all that the bucket has of it into the folder."""
        fresh = super().prepare(number, batches, spec, limits, urgent)
        plan = (self.path / round_folder.PLAN).read_bytes()
        self.plan_digest = _digest_of(plan)
        self._bucket = bucket = self._root.below(self.plan_digest)
        self.slots = SlotClaims(bucket, self.path / round_folder.WORKERS)
        known = bucket.get("plan") is not None
        if known:
            self._catch_up()
        else:
            self._root.clear()
        signer = bucket.signer()  # sign anew each time: URLs of an earlier driver may expire before this one is done
        bucket.put("claim_urls", packed({batch.id: signer.claim(f"claims/{batch.id}") for batch in batches}))
        if not known:
            bucket.put("plan", gzip.compress(plan, 6, mtime=0))  # each worker downloads it
        return fresh

    def set_aside(self, target: Path) -> None:
        """Fetch all that the bucket has of the folder's plan, then move the folder away."""
        plan = self.path / round_folder.PLAN
        if plan.is_file():
            FolderRound.await_old_workers(self)
            self._bucket = self._root.below(_digest_of(plan.read_bytes()))
            self._catch_up()
        super().set_aside(target)

    def await_old_workers(self) -> bool:
        """Wait for workers of an earlier driver on this machine to end, then fetch the last that they sent."""
        waited = super().await_old_workers()
        if waited:
            self._catch_up()
        return waited

    def _catch_up(self) -> None:
        """Fetch everything into the folder, whatever is there already."""
        if (report := self._bucket.get("report")) is not None:
            (self.path / REPORT).write_bytes(report)
        for folder in (round_folder.REQUEUED, round_folder.CHARGED):
            for name, content in self._bucket.get_all(f"{folder}/", list(self._bucket.listed(f"{folder}/"))):
                (self.path / folder / name).write_bytes(content)
        self._claims.fetch()
        fetch_all_events(self._bucket, self.path / round_folder.WORKERS)

    def charge(self, worker: str, attempt: Event) -> None:
        """Record the attempt in the folder and in the bucket."""
        super().charge(worker, attempt)
        newest = max((self.path / round_folder.CHARGED).glob("*.json"))
        self._bucket.put(f"{round_folder.CHARGED}/{newest.name}", newest.read_bytes())

    def finish(self, makespan_s: float) -> None:
        """Record in the folder and in the bucket that the round is done."""
        super().finish(makespan_s)
        self._bucket.put("report", (self.path / REPORT).read_bytes())

    def invite(self, slots: Sequence[Slot]) -> str:
        """Offer slots and start the synchronisation; return the invitation's signed URL."""
        self._publish_news()
        self.slots.offer(slots)
        self._thread = threading.Thread(target=self._run, name="bucket sync", daemon=True)
        self._thread.start()
        return self._bucket.signer().get("invitation")

    def holders(self) -> Mapping[str, str]:
        """The holders of slots: worker name to the identity of a process. Raises what has ended the synchronisation."""
        self._check()
        return dict(self.slots.holders)

    def drained(self, worker: str) -> bool:
        """Return True if all that a worker had sent by the first call is in the folder; for workers that have ended."""
        self._check()
        return self._passes_done >= self._needed_passes.setdefault(worker, self._passes + 1)

    def put(self, name: str, content: bytes) -> str:
        """Write another object for the round's workers; return the signed URL that reads it."""
        self._bucket.put(name, content)
        return self._bucket.signer().get(name)

    def close(self) -> None:
        """Fetch what is left and publish the last news; may be called again. Waits a minute for a store that is away."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        self._bucket.hurry(_LAST_PATIENCE_S)
        self._ending.set()
        thread.join()
        if self._trouble is None:
            self._synchronise()

    def _check(self) -> None:
        if self._trouble is not None:
            raise self._trouble

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                began = time.monotonic()
                self._synchronise()
                self._ending.wait(max(0.05, self.slots.every_s / 2 - (time.monotonic() - began)))
        except PoolError as error:
            self._trouble = error
        except Exception as error:  # raised for those who wait for what this thread fetches
            self._trouble = PoolError(f"the synchronisation with the bucket stopped: {type(error).__name__}: {error}")

    def _synchronise(self) -> None:
        """Fetch and publish everything once."""
        self._passes += 1
        this_pass = self._passes
        self.slots.fetch_holders()
        self._claims.fetch()
        workers = [worker for worker, holder in self.slots.holders.items() if holder != DRIVER]
        self._bucket.map(partial(fetch_events, self._bucket, self.path / round_folder.WORKERS), workers)
        self._publish_news()
        self._passes_done = this_pass

    def _publish_news(self) -> None:
        """Publish the owners of batches, the requeued batches and whether the round is over, if that has changed."""
        for path in sorted((self.path / round_folder.REQUEUED).glob("*.json")):
            if path.name not in self._requeued:
                content = path.read_bytes()
                self._bucket.put(f"requeued/{path.name}", content)
                signer = self._bucket.signer()
                self._requeued[path.name] = [
                    {**record, "claim_urls": signer.claim(f"claims/{record['id']}")} for record in json.loads(content)
                ]
        claimed: defaultdict[str, list[str]] = defaultdict(list)
        for batch, owner in self._claims.fetched().items():
            claimed[owner].append(batch)
        requeued = [record for records in self._requeued.values() for record in records]
        over = (self.path / round_folder.ROUND_OVER).exists()
        news = packed({"claimed": claimed, "requeued": requeued, "over": over, "beat": int(time.time() // _NEWS_CHANGE_S)})
        if news != self._published:
            self._bucket.put("news", news)
            self._published = news


def _digest_of(plan: bytes) -> str:
    return hashlib.sha256(plan).hexdigest()[:16]
