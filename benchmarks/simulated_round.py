"""A round of thousands of workers on a real S3 server: the driver and the protocol are the real ones, the tests are not run.

A worker is a thread that makes the requests of `accel_ci.runner.signed_round` and sleeps in place of its tests. Threads of
one process share the plan, the URLs and the news that all of them download, since each worker has a machine to itself in
reality, and here all of them have one.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from accel_ci.errors import PoolError
from accel_ci.model import Batch, Limits, WorkerSpec
from accel_ci.process.run import Finished
from accel_ci.rounds.bucket_records import Slot
from accel_ci.rounds.bucket_round import BucketRound
from accel_ci.rounds.driver import run_rounds
from accel_ci.rounds.engine import WorkerEnd, WorkerGroup, WorkerState
from accel_ci.rounds.folder_round import FolderRound
from accel_ci.rounds.round_bucket import RoundStore
from accel_ci.runner import round_folder
from accel_ci.runner.choice import Choice, FreeBatches
from accel_ci.runner.round_folder import PlannedBatch
from accel_ci.runner.signed_round import chunk_name, create, form_body
from accel_ci.runner.signed_store import SignedStore, parse
from benchmarks.counted_requests import Requests, requests_of_this_process

_PROCESSES = 4
_FILES = 100
_SUITE = "suite"


@dataclass(frozen=True)
class SimulatedRound:
    """The cost of a round: its requests, and the mean time in seconds between two passes of the driver over the bucket."""

    seconds: float
    attempts: int
    lost: int
    every_s: float
    pass_s: float
    passes: int
    driver: Requests
    workers: Requests


def simulate_round(store: RoundStore, folder: Path, workers: int, each: int, batch_s: float) -> SimulatedRound:
    """Run a round of so many workers, with `each` batches for each of about `batch_s` seconds."""
    batches = [
        Batch(f"b{n:05}", _SUITE, f"test_{n % _FILES}.py", (f"test_{n % _FILES}.py::test_{n}",), batch_s)
        for n in range(workers * each)
    ]
    pool = _SimulatedPool(store, f"simulated-{uuid.uuid4().hex[:8]}", batch_s)
    cards = [str(number) for number in range(workers)]
    began = time.monotonic()
    try:
        with requests_of_this_process() as counted:
            done = run_rounds(
                pool, batches, cards, WorkerSpec("python3", "/sources", {}, "CARD"), Limits(), folder, lambda *_: None, 1
            )
    finally:
        store.of_round(pool.run).clear()
    seconds = time.monotonic() - began
    passes = max(1, pool.record._passes_done)
    own: Requests = sum(pool.counts, Requests())
    return SimulatedRound(
        seconds, done.rows.num_rows, len(done.lost), pool.record.slots.every_s, pool.seconds / passes, passes, counted, own
    )


class _SimulatedPool:
    def __init__(self, store: RoundStore, run: str, batch_s: float) -> None:
        self.run, self.counts, self.seconds = run, list[Requests](), 0.0
        self._store, self._batch_s = store, batch_s
        self.record: BucketRound

    def open_round(self, folder: Path) -> BucketRound:
        record = BucketRound(folder, self._store.of_round(f"{self.run}/{folder.name}"))
        if folder.name == "round-1":
            self.record = record
        return record

    def start(self, record: FolderRound, cards: Sequence[str], spec: WorkerSpec, attempt: int) -> WorkerGroup:
        slots = [Slot(f"w{attempt}-{rank}", card, rank) for rank, card in enumerate(cards)]
        return _SimulatedGroup(self, self.record, slots, self.record.invite(slots), self._batch_s)

    def clear(self, run_dir: Path) -> None:
        """Nothing to do."""

    def end_round(self, folder: Path) -> None:
        """Nothing to do."""

    def forget(self, run_dir: Path) -> None:
        """Nothing to do."""

    def execute(self, command: Sequence[str], spec: WorkerSpec, folder: Path, timeout_s: float) -> Finished:
        raise PoolError("nothing is executed here")


class _SimulatedGroup:
    def __init__(self, pool: _SimulatedPool, record: BucketRound, slots: Sequence[Slot], url: str, batch_s: float) -> None:
        self._pool, self._record, self._slots, self._began = pool, record, slots, time.monotonic()
        context = multiprocessing.get_context("spawn")
        self._answers: Any = context.SimpleQueue()
        crowds = [slots[number::_PROCESSES] for number in range(min(_PROCESSES, len(slots)))]
        self._processes = [
            context.Process(target=_work_together, args=(url, crowd, batch_s, self._answers), daemon=True)
            for crowd in crowds
        ]
        for process in self._processes:
            process.start()
        self._collector = threading.Thread(target=self._collect, daemon=True)
        self._collector.start()

    def _collect(self) -> None:
        for _ in self._processes:
            self._pool.counts.append(self._answers.get())

    def workers(self) -> Sequence[WorkerState]:
        self._record.holders()
        ended = not self._collector.is_alive() and all(not process.is_alive() for process in self._processes)
        return [
            WorkerState(slot.worker, slot.card, self._finished if ended and self._record.drained(slot.worker) else None)
            for slot in self._slots
        ]

    _finished = WorkerEnd("finished", "its process has ended")

    def replace(self, worker: str) -> None:
        raise PoolError("no simulated worker is replaced")

    def stop(self, worker: str) -> None:
        """Leave it: the store is slow here, and nothing hangs."""

    def close(self) -> None:
        self._pool.seconds = time.monotonic() - self._began
        for process in self._processes:
            process.join(60)
            process.terminate()
        self._record.close()


class _Known:
    """The files that the workers of this process have downloaded."""

    def __init__(self, url: str) -> None:
        store = SignedStore()
        self.invitation = store.read(url, "the invitation")
        self.urls = store.read(self.invitation["claim_urls"], "URLs")
        plan = round_folder.plan_of(store.read(self.invitation["plan"], "the plan"))
        self.free, self.over, self.lock = FreeBatches(plan.batches), False, threading.Lock()
        self._etag: str | None = None

    def take_in(self, etag: str | None, body: bytes) -> None:
        with self.lock:
            if etag != self._etag:
                self._etag, news = etag, parse(body, "the news")
                self.over = news["over"]
                self.free.update({batch: owner for owner, batches in news["claimed"].items() for batch in batches})


def _work_together(url: str, slots: Sequence[Slot], batch_s: float, answers: Any) -> None:
    threading.stack_size(256 << 10)
    with requests_of_this_process() as counted:
        known = _Known(url)
        counted.clear()
        threads = [threading.Thread(target=_Worker(known, url, slot, batch_s).work, daemon=True) for slot in slots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    answers.put(counted)


class _Worker:
    def __init__(self, known: _Known, url: str, slot: Slot, batch_s: float) -> None:
        self._known, self._url, self._slot, self._batch_s = known, url, slot, batch_s
        self._store, self._choice = SignedStore(), Choice(known.free, slot.rank)
        self._every_s = float(known.invitation["every_s"])
        self._lines: list[bytes] = []
        self._sent = 0
        self._etag: str | None = None
        self._news_at = self._sent_at = 0.0
        self._random = random.Random(slot.rank)  # noqa: S311

    def work(self) -> None:
        time.sleep(self._every_s * self._random.random())
        invitation, name = self._known.invitation, self._slot.worker
        self._store.ask("GET", self._url, "the invitation")
        urls = next(slot["claim_urls"] for slot in invitation["slots"] if slot["worker"] == name)
        create(self._store, urls, json.dumps({"identity": name}).encode(), "a slot")
        for what in ("plan", "claim_urls"):
            self._store.ask("GET", invitation[what], what)
        self._event(event="worker_started", worker=name, card=self._slot.card, host="host", pid=1, round=1)
        while not self._known.over:
            self._look()
            with self._known.lock:
                batch = self._choice.next(_SUITE)
            if batch is None:
                self._pause(1.0)
                continue
            won = create(self._store, self._known.urls[batch.id], name.encode(), "a claim")
            with self._known.lock:
                self._choice.record(batch, won)
                if won:
                    self._known.free.remove(batch.id, name)
            if won:
                self._run(batch)
        self._send()

    def _run(self, batch: PlannedBatch) -> None:
        self._event(event="claimed", batch=batch.id, tests=len(batch.tests))
        [test] = batch.tests
        self._event(event="started", suite=batch.suite, test=test)
        began, seconds = datetime.now(timezone.utc), self._batch_s * self._random.uniform(0.5, 1.5)
        self._pause(seconds)
        self._event(
            event="attempt", suite=batch.suite, test=test, outcome="passed", started_at=began.isoformat(), duration_s=seconds
        )

    def _pause(self, seconds: float) -> None:
        """Wait, and send events meanwhile, as the thread of an uploader does."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            time.sleep(min(until - now, self._every_s))
            self._send_if_due()

    def _look(self) -> None:
        if time.monotonic() - self._news_at < self._every_s:
            return
        headers = {"If-None-Match": self._etag} if self._etag is not None else {}
        answer = self._store.ask("GET", self._known.invitation["news"], "the news", headers=headers, accept=(200, 304))
        self._news_at = time.monotonic()
        if answer.status == 200:
            self._etag = answer.etag
            self._known.take_in(answer.etag, answer.body)

    def _event(self, **event: Any) -> None:
        line = json.dumps({"at": datetime.now(timezone.utc).isoformat(), **event}, separators=(",", ":"))
        self._lines.append(line.encode() + b"\n")

    def _send_if_due(self) -> None:
        if self._lines and time.monotonic() - self._sent_at >= self._every_s:
            self._send()

    def _send(self) -> None:
        data, self._lines = b"".join(self._lines), []
        form, self._sent_at = self._known.invitation["form"], time.monotonic()
        if data:
            key = f"{form['prefix']}{self._slot.worker}/{round_folder.EVENT_CHUNKS}/{chunk_name(self._sent)}"
            kind, body = form_body({**form["fields"], "key": key}, data)
            self._store.ask("POST", form["url"], "events", body, {"Content-Type": kind}, (200, 201, 204))
            self._sent += len(data)
