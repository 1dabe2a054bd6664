"""The memory of the relay's processes over many deliveries, for `python -m benchmarks.relay --memory N`.

A server and a worker beside it take, dispatch and forget small webhooks for one downstream. The load waits while the worker
is behind, so that nothing piles up. Resident memory is looked at `SAMPLES` times, which goes to stderr; a straight line
through the samples after the first quarter, in which caches fill, is the growth.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from ctypes import c_long
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import psutil

from accel_ci_tests.fixtures.relay_server import RelayServer
from benchmarks.relay_load import send_webhooks, webhook

SAMPLES = 100
FLAT_MIB = 8.0
"""Growth of a process that counts as none. One small object kept for each of 200,000 deliveries would be more."""

_BEHIND = 5000
_STUCK_S = 300


def measure_memory(folder: Path, deliveries: int, database_url: str | None) -> dict[str, Any]:
    """Send so many deliveries; return the memory of both processes over the run, and whether it was flat."""
    context = multiprocessing.get_context("spawn")
    taken: Synchronized[int] = context.Value(c_long, 0)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    stand_in = context.Process(target=_take_dispatches, args=(listener, taken), daemon=True)
    stand_in.start()
    relay = RelayServer(
        folder,
        f"http://127.0.0.1:{listener.getsockname()[1]}",
        "L1: [a/b]\n",
        database_url,
        fan_out={"in_flight": 64, "keep_s": 30, "poll_s": 0.05},
    )
    try:
        relay.start("--no-workers")
        relay.start_worker()
        began, body, sent = time.perf_counter(), webhook(small=True), 0
        samples: list[tuple[int, list[float], float]] = []
        while sent < deliveries:
            count = min(max(1, deliveries // SAMPLES), deliveries - sent)
            send_webhooks(relay.url, body, 32, count=count)
            sent += count
            _wait_for(taken, sent - min(_BEHIND, count))
            memory = [psutil.Process(pid).memory_info().rss / 2**20 for pid in relay.pids]
            samples.append((sent, memory, sum(file.stat().st_size for file in folder.glob("relay.sqlite*")) / 2**20))
            sys.stderr.write(f"{sent} deliveries: {memory[0]:.1f} and {memory[1]:.1f} MiB\n")
        _wait_for(taken, deliveries)
        return {
            "deliveries": sent,
            "dispatched": taken.value,
            "per_second": round(sent / (time.perf_counter() - began), 1),
            "database_mib": [round(samples[at][2], 1) for at in (len(samples) // 4, -1)],
            **{name: _growth([(at, memory[place]) for at, memory, _ in samples])
               for place, name in enumerate(("server", "worker"))},
        }  # fmt: skip
    finally:
        relay.stop()
        stand_in.terminate()
        stand_in.join(10)
        listener.close()


def _growth(samples: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Return memory in MiB: at a quarter, at the end and at most, and the growth by a straight line."""
    late = samples[len(samples) // 4 :]
    slope = statistics.linear_regression([float(at) for at, _ in late], [memory for _, memory in late]).slope
    grown = slope * (late[-1][0] - late[0][0])
    return {
        "first_mib": round(late[0][1], 1),
        "last_mib": round(late[-1][1], 1),
        "most_mib": round(max(memory for _, memory in samples), 1),
        "bytes_per_delivery": round(slope * 2**20, 2),
        "grown_mib": round(grown, 2),
        "flat": grown < FLAT_MIB,
    }


def _wait_for(taken: Synchronized[int], count: int) -> None:
    changed, last = time.monotonic(), taken.value
    while taken.value < count:
        if taken.value != last:
            changed, last = time.monotonic(), taken.value
        if time.monotonic() - changed > _STUCK_S:
            raise SystemExit(f"the worker has dispatched {last} of {count}, and nothing for {_STUCK_S} s")
        time.sleep(0.02)


def _take_dispatches(listener: socket.socket, taken: Synchronized[int]) -> None:
    """Take dispatches as GitHub does, and only count them."""
    import uvicorn

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        taken.value += 1
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(application, http="httptools", ws="none", lifespan="off", access_log=False, log_config=None)
    asyncio.run(uvicorn.Server(config).serve([listener]))
