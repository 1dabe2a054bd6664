"""The round of a worker that shares no folder with the others: all by pre-signed URLs, no credential of its own.

An invitation, the one URL that a worker is started with, names the rest. All objects are JSON, the larger ones gzipped:

    invitation   slots: worker name, card, rank and the URLs to claim it; URLs of the rest; a form to send chunks with
    plan         as in `round_folder.py`
    claim_urls   batch id to the URLs that claim it and read who has it
    news         what the driver says every few seconds: who has which batch, what is requeued, whether the round is over,
                 and a number that changes every minute

Here belongs what these objects mean; how they are asked for is in `signed_store.py`.
"""

from __future__ import annotations

import json
import random
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import round_folder
from .claims import Claims
from .events import EventLog
from .round_folder import PlannedBatch
from .signed_store import SignedStore, parse
from .upload import Uploader, chunk_name

SLOT_PATIENCE_S = 60.0
"""How long a worker waits for a slot before it takes itself for surplus."""

DRIVER_SILENCE_S = 1800.0
"""How long the news may stay the same, in seconds, before a worker with nothing to claim gives its card back."""

_SLOT_PAUSE_S = 1.0
_LAST_WORDS_S = 20.0


@dataclass(frozen=True)
class ClaimUrls:
    """The URLs of a thing that one of many may have: one that claims it and one that reads who has it."""

    put: str
    get: str


class News:
    """What the driver published last, read again when it is older than the driver's own pace."""

    def __init__(self, store: SignedStore, url: str, every_s: float) -> None:
        """Nothing is read yet; `every_s` is how many seconds the driver lets pass between two."""
        self._store, self._url, self._every_s = store, url, every_s
        self._read_at: float | None = None
        self._changed_at = time.monotonic()
        self._etag: str | None = None
        self.over = False
        self.claimed: dict[str, str] = {}
        self.requeued: list[Any] = []

    @property
    def silent(self) -> bool:
        """Whether the driver has not been heard of for so long that it must be gone for good."""
        return time.monotonic() - self._changed_at > DRIVER_SILENCE_S

    def refresh(self) -> None:
        """Read what is new, unless the last reading is fresh. Raises `StoreError`."""
        clock = time.monotonic()
        if self._read_at is not None and clock - self._read_at < self._every_s:
            return
        headers = {"If-None-Match": self._etag} if self._etag is not None else {}
        answer = self._store.ask("GET", self._url, "the news", headers=headers, accept=(200, 304))
        self._read_at = time.monotonic()
        if answer.status == 304:
            return
        content = parse(answer.body, "the news")
        self._etag = answer.etag
        self._changed_at = self._read_at
        self.over = content["over"]
        self.requeued = content["requeued"]
        self.claimed = {batch: owner for owner, batches in content["claimed"].items() for batch in batches}


class SignedClaims:
    """Claims as objects that are created if absent; see `accel_ci_runner.claims.Claims`."""

    def __init__(self, store: SignedStore, urls: dict[str, ClaimUrls], owner: str, news: News) -> None:
        """Claim for `owner`; `urls` may grow."""
        self._store, self._urls, self._owner, self._news = store, urls, owner, news
        self._own: dict[str, str] = {}

    def take(self, batch: str) -> bool:
        """Claim a batch; False when somebody has it. Raises `StoreError`."""
        won = create(self._store, self._urls[batch], self._owner.encode(), f"the claim of {batch}")
        if won:
            self._own[batch] = self._owner
        return won

    def taken(self) -> Mapping[str, str]:
        """Who has which batch, as the driver published it last, and what this worker has claimed since."""
        self._news.refresh()
        for batch in [batch for batch in self._own if batch in self._news.claimed]:
            del self._own[batch]
        return {**self._news.claimed, **self._own}


class SignedRound:
    """A round by pre-signed URLs; see `accel_ci_runner.round.Round`."""

    def __init__(self, store: SignedStore, invitation: Any, slot: Any, host: str, own: Path) -> None:
        """Take part in the slot that this worker has claimed. Raises `StoreError` when the plan cannot be read."""
        self.worker, self.card, self.rank = slot["worker"], slot["card"], slot["rank"]
        self.host, self.own = host, own
        self.plan = round_folder.plan_of(store.read(invitation["plan"], "the plan"))
        urls = store.read(invitation["claim_urls"], "the URLs of claims")
        self._store = store
        self._urls = {batch: ClaimUrls(*pair) for batch, pair in urls.items()}
        self._news = News(store, invitation["news"], invitation["every_s"])
        self.claims: Claims = SignedClaims(store, self._urls, self.worker, self._news)
        self.log = EventLog(own / round_folder.EVENTS)
        self._form = invitation["form"]
        self._uploads = SignedStore()
        self._uploader = Uploader(own / round_folder.EVENTS, self._send, invitation["every_s"])
        self._given = 0

    def requeued(self) -> Sequence[PlannedBatch]:
        """See `Round`. Raises `StoreError`, also when events can no longer be sent."""
        if self._uploader.failed is not None:
            raise self._uploader.failed
        self._news.refresh()
        fresh = self._news.requeued[self._given :]
        self._given += len(fresh)
        for record in fresh:
            self._urls[record["id"]] = ClaimUrls(*record["claim_urls"])
        return [round_folder.batch_of(record) for record in fresh]

    def is_over(self) -> bool:
        """See `Round`."""
        self._news.refresh()
        return self._news.over or self._news.silent

    def hurry(self) -> None:
        """Wait for the store no longer than a process that is asked to end has time for."""
        self._store.patience_s = self._uploads.patience_s = _LAST_WORDS_S

    def close(self) -> None:
        """See `Round`. Raises `StoreError` when the last events could not be sent."""
        self._uploader.close()
        self._uploads.close()
        self._store.close()
        if self._uploader.failed is not None:
            raise self._uploader.failed

    def _send(self, offset: int, data: bytes) -> None:
        key = f"{self._form['prefix']}{self.worker}/{round_folder.EVENT_CHUNKS}/{chunk_name(offset)}"
        content_type, body = form_body({**self._form["fields"], "key": key}, data)
        self._uploads.ask("POST", self._form["url"], "events", body, {"Content-Type": content_type}, (200, 201, 204))


def join(url: str, identity: str, host: str, own: Path) -> SignedRound | None:
    """Take part in the round that the invitation at `url` is for; None when it needs no more workers.

    `identity` names this process to the driver, `host` is the machine that the card is in, `own` is a folder of
    this worker's alone. Raises `StoreError`.
    """
    store = SignedStore()
    deadline = time.monotonic() + SLOT_PATIENCE_S
    token = json.dumps({"identity": identity, "host": host, "token": uuid.uuid4().hex}).encode()
    refused: set[str] = set()
    while True:
        invitation = store.read(url, "the invitation")
        free = [slot for slot in invitation["slots"] if slot["worker"] not in refused]
        start = zlib.crc32(identity.encode()) % max(1, len(free))
        for slot in free[start:] + free[:start]:
            if create(store, ClaimUrls(*slot["claim_urls"]), token, "a slot"):
                return SignedRound(store, invitation, slot, host, own)
            refused.add(slot["worker"])
        if time.monotonic() > deadline:
            return None
        time.sleep(_SLOT_PAUSE_S * random.uniform(0.8, 1.2))  # noqa: S311


def create(store: SignedStore, urls: ClaimUrls, content: bytes, what: str) -> bool:
    """Create an object if it is absent; False when somebody else has. Raises `StoreError`.

    After a lost answer the refusal may be of this worker's own object: then what it holds decides.
    """
    answer = store.ask("PUT", urls.put, what, content, {"If-None-Match": "*"}, accept=(200, 412))
    if answer.status == 200:
        return True
    return answer.tries > 1 and store.ask("GET", urls.get, what).body == content


def form_body(fields: Mapping[str, str], data: bytes) -> tuple[str, bytes]:
    """The content type and body of a form with a file, as a POST policy wants it."""
    boundary = uuid.uuid4().hex
    head = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    )
    head += f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="chunk"\r\n'
    head += "Content-Type: application/octet-stream\r\n\r\n"
    return f"multipart/form-data; boundary={boundary}", head.encode() + data + f"\r\n--{boundary}--\r\n".encode()
