"""The round of a worker that shares no folder with the others: it uses pre-signed URLs and has no credentials.

A worker is started with one URL, that of the invitation, which has all others. The objects are JSON, larger ones gzipped:

    invitation   slots: worker name, card, rank and the URLs to claim it; URLs of the other objects; a form to send chunks
    plan         as in `round_folder.py`
    claim_urls   for each batch id the URLs that claim the batch and read its owner
    news         from the driver, every few seconds: owners of batches, requeued batches, whether the round is over, and a
                 number that changes every minute

A worker sends its growing file of events in chunks, each an object named by its offset in the file, in bytes: a reader knows
the name of the next chunk, and a chunk that is sent again is the same object. The requests are in `signed_store.py`.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import round_folder
from .claims import Claims
from .events import EventFile, EventLog
from .long_wait import LongWait
from .round_folder import PlannedBatch
from .signed_store import SignedStore, StoreError, parse

SLOT_PATIENCE_S = 60.0  # seconds after which a worker that gets no slot is not needed
DRIVER_SILENCE_S = 1800.0  # seconds of unchanged news after which a worker with nothing to claim gives up its card
CHUNK_BYTES = 4 << 20  # the largest size of a chunk, unless a single line is longer
_SLOT_PAUSE_S = 1.0
_HURRIED_PATIENCE_S = 20.0

ClaimUrls = Sequence[str]
"""The two URLs of something that only one of many can claim: one claims it, the other reads its owner."""


class News:
    """The driver's latest news, read again when the driver may have published more."""

    def __init__(self, store: SignedStore, url: str, every_s: float) -> None:
        """Take `every_s` as the seconds between two publications of the driver."""
        self._store, self._url, self._every_s = store, url, every_s
        self._read_at: float | None = None
        self.changed_at = time.monotonic()
        self._etag: str | None = None
        self.over = False
        self.claimed: dict[str, str] = {}
        self.requeued: list[Any] = []

    def refresh(self) -> None:
        """Read the news, unless that was done less than `every_s` seconds ago. Raises `StoreError`."""
        clock = time.monotonic()
        if self._read_at is not None and clock - self._read_at < self._every_s:
            return
        headers = {"If-None-Match": self._etag} if self._etag is not None else {}
        answer = self._store.ask("GET", self._url, "the news", headers=headers, accept=(200, 304))
        self._read_at = time.monotonic()
        if answer.status == 304:
            return
        content = parse(answer.body, "the news")
        self._etag, self.changed_at = answer.etag, self._read_at
        self.over = content["over"]
        self.requeued = content["requeued"]
        self.claimed = {batch: owner for owner, batches in content["claimed"].items() for batch in batches}


class SignedClaims:
    """Claims as objects that are created if absent; see `claims.Claims`."""

    def __init__(self, store: SignedStore, urls: dict[str, ClaimUrls], owner: str, news: News) -> None:
        """Claim for `owner`; `urls` may grow."""
        self._store, self._urls, self._owner, self._news = store, urls, owner, news
        self._own: dict[str, str] = {}

    def take(self, batch: str) -> bool:
        """Claim a batch; False when it has an owner. Raises `StoreError`."""
        won = create(self._store, self._urls[batch], self._owner.encode(), f"the claim of {batch}")
        if won:
            self._own[batch] = self._owner
        return won

    def taken(self) -> Mapping[str, str]:
        """Return the owners of batches: those in the news, and this worker for what it has claimed since."""
        self._news.refresh()
        self._own = {batch: owner for batch, owner in self._own.items() if batch not in self._news.claimed}
        return {**self._news.claimed, **self._own}


class SignedRound:
    """A round by pre-signed URLs, with the attributes and methods of `round.ChannelRound`."""

    def __init__(self, store: SignedStore, invitation: Any, slot: Any, host: str, folder: Path) -> None:
        """Join with a slot that has been claimed. Raises `StoreError` when the plan cannot be read."""
        self.worker, self.card, self.rank = slot["worker"], slot["card"], slot["rank"]
        self.host, self.folder = host, folder
        self.plan = round_folder.plan_of(store.read(invitation["plan"], "the plan"))
        self._store = store
        self._urls: dict[str, ClaimUrls] = store.read(invitation["claim_urls"], "the URLs of claims")
        self._news = News(store, invitation["news"], invitation["every_s"])
        self.claims: Claims = SignedClaims(store, self._urls, self.worker, self._news)
        self.log = EventLog(EventFile(folder / round_folder.EVENTS).append)
        self._form = invitation["form"]
        self._uploads = SignedStore()
        self._uploader = Uploader(folder / round_folder.EVENTS, self._send, invitation["every_s"])
        self._requeued_seen = 0

    def requeued(self) -> Sequence[PlannedBatch]:
        """See `ChannelRound`. Raises `StoreError`, also when events cannot be sent any more."""
        if self._uploader.failed is not None:
            raise self._uploader.failed
        self._news.refresh()
        fresh = self._news.requeued[self._requeued_seen :]
        self._requeued_seen += len(fresh)
        for record in fresh:
            self._urls[record["id"]] = record["claim_urls"]
        return [round_folder.batch_of(record) for record in fresh]

    def is_over(self) -> bool:
        """See `ChannelRound`; also True after so long without changed news that the driver must have ended."""
        self._news.refresh()
        return self._news.over or time.monotonic() - self._news.changed_at > DRIVER_SILENCE_S

    def hurry(self) -> None:
        """Wait for the store no longer than a process that has been told to end may take."""
        self._store.patience_s = self._uploads.patience_s = _HURRIED_PATIENCE_S

    def close(self) -> None:
        """Send the driver the rest of the events. Raises `StoreError` when that fails."""
        self._uploader.close()
        self._uploads.close()
        self._store.close()
        if self._uploader.failed is not None:
            raise self._uploader.failed

    def _send(self, offset: int, data: bytes) -> None:
        key = f"{self._form['prefix']}{self.worker}/{round_folder.EVENT_CHUNKS}/{chunk_name(offset)}"
        content_type, body = form_body({**self._form["fields"], "key": key}, data)
        self._uploads.ask("POST", self._form["url"], "events", body, {"Content-Type": content_type}, (200, 201, 204))


def join(url: str, identity: str, host: str, folder: Path) -> SignedRound | None:
    """Join the round of the invitation at `url`; None when it needs no more workers.

    `identity` names this process to the driver, `host` is the machine of the card, `folder` belongs to this worker alone.
    Raises `StoreError`.
    """
    store = SignedStore()
    deadline = time.monotonic() + SLOT_PATIENCE_S
    wait = LongWait("a free slot of the round")
    token = json.dumps({"identity": identity, "host": host, "token": uuid.uuid4().hex}).encode()
    refused: set[str] = set()
    while True:
        invitation = store.read(url, "the invitation")
        free = [slot for slot in invitation["slots"] if slot["worker"] not in refused]
        start = zlib.crc32(identity.encode()) % max(1, len(free))
        for slot in free[start:] + free[:start]:
            if create(store, slot["claim_urls"], token, "a slot"):
                return SignedRound(store, invitation, slot, host, folder)
            refused.add(slot["worker"])
        if time.monotonic() > deadline:
            return None
        wait.still_waiting()
        time.sleep(_SLOT_PAUSE_S * random.uniform(0.8, 1.2))  # noqa: S311


def create(store: SignedStore, urls: ClaimUrls, content: bytes, what: str) -> bool:
    """Create an object if it is absent; False when another process has created it. Raises `StoreError`.

    If an answer was lost, the object may be this worker's own in spite of the refusal: its content decides.
    """
    put, get = urls
    answer = store.ask("PUT", put, what, content, {"If-None-Match": "*"}, accept=(200, 412))
    return answer.status == 200 or (answer.tries > 1 and store.ask("GET", get, what).body == content)


def form_body(fields: Mapping[str, str], data: bytes) -> tuple[str, bytes]:
    """Return the content type and body of a form with a file, as a POST policy requires it."""
    boundary = uuid.uuid4().hex
    head = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    )
    head += f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="chunk"\r\n'
    head += "Content-Type: application/octet-stream\r\n\r\n"
    return f"multipart/form-data; boundary={boundary}", head.encode() + data + f"\r\n--{boundary}--\r\n".encode()


def chunk_name(offset: int) -> str:
    """Return the name of the chunk at an offset in bytes; names sort as offsets do."""
    return f"{offset:012d}"


class Uploader:
    """Sends the new complete lines of a file every few seconds, from a separate thread."""

    def __init__(self, path: Path, send: Callable[[int, bytes], None], every_s: float) -> None:
        """Start the thread. `send` uploads the bytes at an offset; a `StoreError` that it raises is kept in `failed`."""
        self.failed: StoreError | None = None
        self._path, self._send, self._every_s, self._sent = path, send, every_s, 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the rest of the file, waiting as long as `send` does."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ending.wait(self._every_s):
                self._flush()
            self._flush()
        except StoreError as error:
            self.failed = error

    def _flush(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._sent)
                data = file.read()
        except FileNotFoundError:  # deleted by a test; the next event makes it again
            return
        data = data[: data.rfind(b"\n") + 1]
        while data:
            end = data.rfind(b"\n", 0, CHUNK_BYTES) + 1 or data.find(b"\n") + 1
            self._send(self._sent, data[:end])
            self._sent += end
            data = data[end:]
