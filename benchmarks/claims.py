"""Measure the cost of a round apart from its tests: `python -m benchmarks.claims [--json]`.

It measures a claim while workers race for batches, in a folder and in a bucket; and the time in which a driver merges the
200,000 attempts of 2,048 workers, from a folder and from the bucket alone. The bucket is that of `ACCEL_CI_S3_ENDPOINT`,
`…_BUCKET`, `…_ACCESS_KEY` and `…_SECRET_KEY`; without them only folders are measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from accel_ci.errors import PoolError
from accel_ci.model import Batch, Limits, WorkerSpec
from accel_ci.process.run import Finished
from accel_ci.rounds.bucket_records import Slot
from accel_ci.rounds.bucket_round import BucketRound
from accel_ci.rounds.claim_record import ClaimRecord
from accel_ci.rounds.driver import run_rounds
from accel_ci.rounds.engine import WorkerGroup
from accel_ci.rounds.folder_round import FolderRound
from accel_ci.rounds.round_bucket import CONNECTIONS, RoundStore
from accel_ci.rounds.worker_channels import WorkerChannels
from accel_ci.runner import round_folder
from accel_ci.runner.channel import Channel
from accel_ci.runner.claims import Claims
from accel_ci.runner.round import ChannelClaims
from accel_ci.runner.signed_round import News, SignedClaims, chunk_name
from accel_ci.runner.signed_store import SignedStore
from accel_ci.storage.s3 import environment_keys

GOALS = {"folder_p50_ms": 2.0, "bucket_p50_ms": 25.0, "merge_folder_s": 10.0, "merge_bucket_s": 10.0}
RACERS = 8
BATCHES = 2_000
WORKERS = 2_048
TESTS = 98
CHUNKS = 2
"""For each worker, as is `TESTS`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit code: 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args(argv)
    store = _store()
    with tempfile.TemporaryDirectory(prefix="accel-ci-claims-") as scratch:
        found = {
            "claims": {
                "folder": _race(Path(scratch, "folder-race"), None),
                **({"bucket": _race(Path(scratch, "bucket-race"), store)} if store else {}),
            },
            "merge": {
                "folder": _merge(Path(scratch, "folder"), None),
                **({"bucket": _merge(Path(scratch, "bucket"), store)} if store else {}),
            },
            "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]},
        }
    reached = {
        "folder_p50_ms": found["claims"]["folder"]["p50_ms"],
        "merge_folder_s": found["merge"]["folder"]["seconds"],
    }
    if store:
        reached["bucket_p50_ms"] = found["claims"]["bucket"]["p50_ms"]
        reached["merge_bucket_s"] = found["merge"]["bucket"]["seconds"]
    found["missed"] = [goal for goal, value in reached.items() if value > GOALS[goal]]
    console = Console()
    if options.json:
        console.print_json(json.dumps(found))
    else:
        _show(console, found)
    return 1 if found["missed"] else 0


# --- claims ---------------------------------------------------------------------------------------------------------


def _race(run_dir: Path, store: RoundStore | None) -> dict[str, float]:
    """Have processes race for batches, each starting at a different place; return the times of all claims, won or lost."""
    batches = [Batch(f"b{number}", "suite", "test_a.py", ("test_a.py::t",), 1.0) for number in range(BATCHES)]
    run = f"claims-{uuid.uuid4().hex[:8]}"
    record = _Finished(store, run).open_round(run_dir / "round-1")
    record.prepare(1, batches, WorkerSpec("python3", "/sources", {}, "CARD"), Limits(), 0)
    slots = [Slot(f"w0-{rank}", str(rank), rank) for rank in range(RACERS)]
    url = record.invite(slots) if isinstance(record, BucketRound) else ""
    channels = None if isinstance(record, BucketRound) else WorkerChannels(record)
    for rank in range(RACERS) if channels is not None else ():
        (record.path / round_folder.ROOMS / f"w0-{rank}").mkdir(parents=True)
        channels.listen(f"w0-{rank}", "socket", (os.getuid(), os.getgid()))
    context = multiprocessing.get_context("spawn")
    began = context.Barrier(RACERS)
    answers: Any = context.SimpleQueue()
    racers = [context.Process(target=_claim_all, args=(rank, record.path, url, began, answers)) for rank in range(RACERS)]
    for racer in racers:
        racer.start()
    results = [answers.get() for _ in racers]
    for racer in racers:
        racer.join()
    if channels is not None:
        channels.close()
    if isinstance(record, BucketRound) and store is not None:
        record.close()
        store.of_round(run).clear()
    times = sorted(time_s for result in results for time_s in result["times"])
    won = sum(result["won"] for result in results)
    if won != BATCHES:
        raise AssertionError(f"{won} claims were won of {BATCHES} batches")
    return {
        "p50_ms": round(statistics.median(times) * 1e3, 3),
        "p99_ms": round(times[int(len(times) * 0.99)] * 1e3, 3),
        "claims_per_s": round(won / max(result["seconds"] for result in results)),
        "tries_per_claim": round(len(times) / won, 3),
    }


class _AskedClaims(ChannelClaims):
    """Claims of a channel that ask for news whenever a worker would."""

    def taken(self) -> Mapping[str, str]:
        self.refresh()
        return super().taken()


def _claim_all(rank: int, folder: Path, url: str, began: Any, answers: Any) -> None:
    claims: Claims
    if url:
        store = SignedStore()
        invitation = store.read(url, "the invitation")
        urls = store.read(invitation["claim_urls"], "URLs")
        claims = SignedClaims(store, urls, f"w0-{rank}", News(store, invitation["news"], invitation["every_s"]))
    else:
        claims = _AskedClaims(Channel(str(folder / round_folder.ROOMS / f"w0-{rank}" / "socket")))
    first = rank * BATCHES // RACERS
    order = [f"b{(first + step) % BATCHES}" for step in range(BATCHES)]
    claims.taken()
    began.wait()
    start = time.perf_counter()
    times, won = [], 0
    while True:
        taken = claims.taken()
        batch = next((batch for batch in order if batch not in taken), None)
        if batch is None:
            break
        before = time.perf_counter()
        won += claims.take(batch)
        times.append(time.perf_counter() - before)
    answers.put({"times": times, "won": won, "seconds": time.perf_counter() - start})


# --- merging --------------------------------------------------------------------------------------------------------


class _Finished:
    """A pool whose round is over: its driver only merges what the workers have written."""

    def __init__(self, store: RoundStore | None, run: str) -> None:
        self._store, self._run = store, run

    def open_round(self, folder: Path) -> FolderRound:
        if self._store is None:
            return FolderRound(folder)
        return BucketRound(folder, self._store.of_round(f"{self._run}/{folder.name}"))

    def start(self, record: FolderRound, cards: Sequence[str], spec: WorkerSpec, attempt: int) -> WorkerGroup:
        raise PoolError("the round is over")

    def clear(self, run_dir: Path) -> None:
        """Nothing to do."""

    def forget(self, run_dir: Path) -> None:
        """Nothing to do."""

    def execute(self, command: Sequence[str], spec: WorkerSpec, folder: Path, timeout_s: float) -> Finished:
        raise PoolError("the round is over")


def _merge(run_dir: Path, store: RoundStore | None) -> dict[str, float]:
    """Return the seconds in which a new driver gets all attempts; with a bucket its folder is empty at first."""
    spec, limits = WorkerSpec("python3", "/sources", {}, "CARD"), Limits()
    batches = [
        Batch(
            f"b{worker:05d}",
            "suite",
            f"test_{worker % 400}.py",
            tuple(_test(worker, n) for n in range(TESTS)),
            1.0,
        )
        for worker in range(WORKERS)
    ]
    cards = [str(number) for number in range(WORKERS)]
    run = f"merge-{uuid.uuid4().hex[:8]}"
    record = _Finished(store, run).open_round(run_dir / "round-1")
    record.prepare(1, batches, spec, limits, 0)
    if isinstance(record, BucketRound) and store is not None:
        bucket = store.of_round(f"{run}/round-1").below(record.plan_digest)

        def send(worker: int) -> None:
            lines = _events(worker)
            bucket.put(f"slots/w0-{worker}", b'{"identity": "pod"}')
            bucket.put(f"claims/b{worker:05d}", f"w0-{worker}".encode())
            half = sum(map(len, lines[: len(lines) // CHUNKS]))
            text = b"".join(lines)
            for offset, chunk in ((0, text[:half]), (half, text[half:])):
                bucket.put(f"workers/w0-{worker}/{round_folder.EVENT_CHUNKS}/{chunk_name(offset)}", chunk)

        with ThreadPoolExecutor(CONNECTIONS) as crowd:
            list(crowd.map(send, range(WORKERS)))
        bucket.put("report", b'{"makespan_s": 1.0}')
        run_dir = run_dir.with_name("empty")
    else:
        claims = ClaimRecord(record.path / round_folder.CLAIMS)
        for worker in range(WORKERS):
            own = record.path / round_folder.WORKERS / f"w0-{worker}"
            own.mkdir()
            (own / round_folder.EVENTS).write_bytes(b"".join(_events(worker)))
            claims.take(f"b{worker:05d}", own.name)
        record.finish(1.0)
    began, busy = time.perf_counter(), time.process_time()
    merged = run_rounds(
        _Finished(store, run), batches, cards, spec, limits, run_dir, lambda *_: None, 1,
    )  # fmt: skip
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - busy
    if store is not None:
        store.of_round(run).clear()
    count = len(merged.attempts)
    if count != WORKERS * TESTS:
        raise AssertionError(f"{count} attempts were merged")
    return {
        "seconds": round(seconds, 2),
        "cpu_s": round(cpu_s, 2),
        "attempts": count,
        "attempts_per_s": round(count / seconds),
    }


def _test(worker: int, number: int) -> str:
    return f"test_{worker % 400}.py::TestCommonPRIVATEUSE1::test_out_warning_op_{worker}_{number}_privateuse1_float32"


def _events(worker: int) -> list[bytes]:
    """The lines of one worker."""
    begin = datetime(2026, 11, 27, tzinfo=timezone.utc)
    name, host, card = f"w0-{worker}", f"host-{worker // 8}", str(worker)
    events: list[dict[str, Any]] = [
        {"event": "worker_started", "worker": name, "card": card, "host": host, "pid": 1, "round": 1},
        {"event": "claimed", "batch": f"b{worker:05d}", "tests": TESTS},
    ]
    for number in range(TESTS):
        at = (begin + timedelta(seconds=number)).isoformat()
        test = _test(worker, number)
        events.append({"event": "started", "suite": "suite", "test": test})
        events.append(
            {
                "event": "attempt", "suite": "suite", "test": test, "outcome": "passed", "started_at": at, "duration_s": 0.5,
            }
        )  # fmt: skip
    at = begin.isoformat()
    return [json.dumps({"at": at, **event}, separators=(",", ":")).encode() + b"\n" for event in events]


# --- output ---------------------------------------------------------------------------------------------------------


def _store() -> RoundStore | None:
    endpoint, bucket = os.environ.get("ACCEL_CI_S3_ENDPOINT"), os.environ.get("ACCEL_CI_S3_BUCKET")
    if not bucket:
        return None
    access_key, secret_key = environment_keys()
    return RoundStore(bucket, "rounds-of-benchmarks", endpoint, None, access_key, secret_key)


def _show(console: Console, found: dict[str, Any]) -> None:
    claims = Table(title=f"{RACERS} processes racing for {BATCHES} batches")
    for column in ("claims in", "p50 ms", "p99 ms", "claims/s", "tries a claim"):
        claims.add_column(column)
    for place, one in found["claims"].items():
        claims.add_row(place, *(f"{one[key]:g}" for key in ("p50_ms", "p99_ms", "claims_per_s", "tries_per_claim")))
    merge = Table(title=f"a driver merges what {WORKERS} workers have written")
    for column in ("from", "attempts", "seconds", "own CPU seconds", "attempts/s"):
        merge.add_column(column)
    for place, one in found["merge"].items():
        merge.add_row(place, *(f"{one[key]:g}" for key in ("attempts", "seconds", "cpu_s", "attempts_per_s")))
    console.print(claims, merge)
    console.print(f"goals missed: {', '.join(found['missed']) or 'none'}; {found['machine']}")


if __name__ == "__main__":
    sys.exit(main())
