"""Keep a round's folder and its objects in a bucket alike, for workers that share no folder with the driver.

The driver uses only its folder. What it writes there (plan, requeued batches, the end) is published in the bucket; what
workers leave in the bucket (claims of slots and batches, events) is fetched into the folder. The bucket is the truth: a
driver that starts again, even on an empty folder, gets from it all that its predecessor knew.

All objects are below the plan's digest, so that a worker of another plan can do no harm:

    plan, claim_urls, news, invitation    for workers; see `accel_ci.runner.signed_round`
    claims/<batch>, slots/<worker>        their owners
    requeued/<n>.json                     batches of lost workers, to be run by others, who learn of them from the news
    workers/<worker>/events/<offset>      a worker's events, in chunks named by their offsets
    report                                written by the driver when the round is done
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from accel_ci.errors import PoolError
from accel_ci.rounds.bucket_claims import BucketClaims
from accel_ci.rounds.bucket_events import fetch_all_events, fetch_events
from accel_ci.rounds.bucket_news import BucketNews
from accel_ci.rounds.bucket_slots import BucketSlots
from accel_ci.rounds.bucket_slots import Slot as Slot
from accel_ci.rounds.folder_round import DRIVER, REPORT
from accel_ci.rounds.round_bucket import RoundBucket, packed
from accel_ci.runner import round_folder
from accel_ci.runner.claims import Claims

_LAST_PATIENCE_S = 60.0


class BucketSync:
    """Synchronises one round's folder and bucket. Methods raise `PoolError` when the bucket stays away or refuses."""

    _bucket: RoundBucket
    _claims: BucketClaims
    _slots: BucketSlots
    _news: BucketNews

    def __init__(self, folder: Path, bucket: RoundBucket) -> None:
        """Read and write nothing yet; `open` comes first."""
        self.folder, self._root = folder, bucket
        self.plan_digest = ""
        self._trouble: PoolError | None = None
        self._passes = self._passes_done = 0
        self._needed_passes: dict[str, int] = {}
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    # --- for the driver -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the folder and the bucket agree on the plan, and fetch all that the bucket has of it."""
        plan = (self.folder / round_folder.PLAN).read_bytes()
        self.plan_digest = hashlib.sha256(plan).hexdigest()[:16]
        self._bucket = bucket = self._root.below(self.plan_digest)
        self._claims = BucketClaims(bucket, self.folder / round_folder.CLAIMS)
        self._slots = BucketSlots(bucket, self.folder / round_folder.WORKERS)
        self._news = BucketNews(bucket, self.folder)
        known = bucket.get("plan") is not None
        if known:
            self.catch_up()
        else:
            self._root.clear()
        signer = bucket.signer()  # sign anew each time: URLs of an earlier driver may expire before this one is done
        urls = {batch["id"]: signer.claim(f"claims/{batch['id']}") for batch in json.loads(plan)["batches"]}
        bucket.put("claim_urls", packed(urls))
        if not known:
            bucket.put("plan", plan)

    def catch_up(self) -> None:
        """Fetch everything into the folder, whatever is there already."""
        report = self._bucket.get("report")
        if report is not None:
            (self.folder / REPORT).write_bytes(report)
        names = list(self._bucket.sizes("requeued/"))
        for name, content in zip(names, self._bucket.get_all("requeued/", names), strict=True):
            if content is not None:
                (self.folder / round_folder.REQUEUED / name).write_bytes(content)
        self._claims.fetch()
        fetch_all_events(self._bucket, self.folder / round_folder.WORKERS)

    def claims(self) -> Claims:
        """The claims of batches, where the driver can claim them too."""
        return self._claims

    def finish(self) -> None:
        """Record in the bucket that the round is done, as in the folder."""
        self._bucket.put("report", (self.folder / REPORT).read_bytes())

    # --- for the pool -------------------------------------------------------------------------------------------

    def invite(self, slots: Sequence[Slot]) -> str:
        """Offer slots and start the synchronisation; return the invitation's signed URL."""
        self._news.publish(self._claims.owners)
        self._slots.offer(slots)
        self._thread = threading.Thread(target=self._run, name="bucket sync", daemon=True)
        self._thread.start()
        return self._bucket.signer().get("invitation")

    def invited(self) -> list[Slot]:
        """Read the slots of the invitation in the bucket, which may be an earlier driver's."""
        return self._slots.offered()

    def add_slot(self, slot: Slot) -> None:
        """Offer one more slot."""
        self._slots.offer([slot])

    def withdraw_slot(self, worker: str) -> bool:
        """Keep a slot from being claimed; False when a process has it."""
        return self._slots.withdraw(worker)

    def holders(self) -> Mapping[str, str]:
        """The holders of slots: worker name to the identity of a process. Raises what has ended the synchronisation."""
        self._check()
        return dict(self._slots.holders)

    def drained(self, worker: str) -> bool:
        """Whether all that a worker had sent by the first call is in the folder; ask this of a worker that has ended."""
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

    # --- synchronisation ----------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._trouble is not None:
            raise self._trouble

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                began = time.monotonic()
                self._synchronise()
                self._ending.wait(max(0.05, self._slots.every_s / 2 - (time.monotonic() - began)))
        except PoolError as error:
            self._trouble = error
        except Exception as error:  # raised for those who wait for what this thread fetches
            self._trouble = PoolError(f"the synchronisation with the bucket stopped: {type(error).__name__}: {error}")

    def _synchronise(self) -> None:
        """Fetch and publish everything once."""
        self._passes += 1
        this_pass = self._passes
        self._slots.fetch_holders()
        self._claims.fetch()
        workers = [worker for worker, holder in self._slots.holders.items() if holder != DRIVER]
        self._bucket.map(partial(fetch_events, self._bucket, self.folder / round_folder.WORKERS), workers)
        self._news.publish(self._claims.owners)
        self._passes_done = this_pass
