"""The speed of the relay's server: `python -m benchmarks.relay [--seconds S] [--postgresql] [--json]`.

Two questions. How many webhooks are accepted each second, and how long does an answer take: `--connections` connections send
20 KB webhooks one after the other, to a server without workers, to one with a worker in a process beside it, and to one that
dispatches itself. How long do healthy downstreams wait when others are slow or down: `--rate` deliveries a second go to 20
downstreams, of which three take 2 s for an answer and two answer with errors; measured is the time from the answer to the
webhook until the downstream has it.

The load, the server and the stand-in for GitHub share the cores of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx

from accel_ci_tests.fixtures.github_server import Behaviour, GitHubServer
from accel_ci_tests.fixtures.postgres import empty_postgres
from accel_ci_tests.fixtures.relay_server import RelayServer, headers_for, pull_request

HEALTHY = [f"healthy/d{number}" for number in range(15)]
SLOW = [f"slow/d{number}" for number in range(3)]
DOWN = [f"down/d{number}" for number in range(2)]
SLOW_S = 2.0
PADDING = "x" * 20_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="length of each of the four measurements")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--rate", type=float, default=2, help="deliveries each second, for the waits of healthy downstreams")
    parser.add_argument("--postgresql", action="store_true", help="use the database of ACCEL_CI_POSTGRES_URL, not SQLite")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    stand_in = multiprocessing.get_context("spawn").Process(target=_stand_in, args=(theirs,), daemon=True)
    stand_in.start()
    github = ours.recv()
    found: dict[str, Any] = {"cores": os.cpu_count(), "database": "postgresql" if options.postgresql else "sqlite"}
    for workers in ("none", "beside", "inside"):
        with _relay(github, options.postgresql) as relay:
            relay.start(*([] if workers == "inside" else ["--no-workers"]))
            if workers == "beside":
                relay.start_worker()
            accepted = asyncio.run(_accept(relay.url, options.connections, options.seconds))
            found[f"accepted_with_workers_{workers}"] = accepted
    with _relay(github, options.postgresql) as relay:
        relay.start()
        answered = _deliver_steadily(relay, options.rate, options.seconds)
        time.sleep(SLOW_S + 1)
        ours.send("taken")
        found["waits_of_healthy"] = _waits(answered, ours.recv())
    ours.send("end")
    text = json.dumps(found, indent=2) if options.json else "\n".join(f"{name}: {value}" for name, value in found.items())
    sys.stdout.write(text + "\n")


def _stand_in(pipe: Connection) -> None:
    server = GitHubServer()
    server.behaviours |= {name: Behaviour(204, delay_s=SLOW_S) for name in SLOW}
    server.behaviours |= {name: Behaviour(503) for name in DOWN}
    pipe.send(server.url)
    while pipe.recv() == "taken":
        pipe.send([(one.delivery, one.repository, one.at) for one in server.dispatches])


@contextmanager
def _relay(github: str, postgresql: bool) -> Iterator[RelayServer]:
    """A server on an empty database; it ends afterwards."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(contextmanager(empty_postgres)()) if postgresql else None
        relay = RelayServer(folder, github, f"L1: [{', '.join([*HEALTHY, *SLOW, *DOWN])}]\n", database)
        stack.callback(relay.stop)
        yield relay


async def _accept(url: str, connections: int, seconds: float) -> dict[str, float]:
    """Send webhooks over each connection, one after the other; return the rate and the times of the answers."""
    at = httpx.URL(url)
    times: list[float] = []
    began = time.perf_counter()

    body = json.dumps(pull_request(padding=PADDING)).encode()
    start = {**headers_for(body), "Content-Length": str(len(body)), "Host": "relay"}

    def request() -> bytes:
        headers = "".join(
            f"{name}: {value}\r\n" for name, value in {**start, "X-GitHub-Delivery": str(uuid.uuid4())}.items()
        )
        return f"POST /github/webhook HTTP/1.1\r\n{headers}\r\n".encode() + body

    async def send() -> None:
        reader, writer = await asyncio.open_connection(at.host, at.port)
        while time.perf_counter() - began < seconds:
            sent = time.perf_counter()
            writer.write(request())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if not head.startswith(b"http/1.1 202"):
                raise SystemExit(f"the answer was {head!r}")
            await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
            times.append(time.perf_counter() - sent)
        writer.close()

    await asyncio.gather(*(send() for _ in range(connections)))
    took = time.perf_counter() - began
    return {"per_second": round(len(times) / took, 1), **_quantiles_ms(times), "accepted": len(times)}


def _deliver_steadily(relay: RelayServer, rate: float, seconds: float) -> dict[str, float]:
    """Deliver at a steady rate; return the time of each answer."""
    answered, began = {}, time.time()
    with httpx.Client(timeout=30) as client:
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, began + number / rate - time.time()))
            body = json.dumps(pull_request(padding=PADDING)).encode()
            headers = headers_for(body)
            client.post(relay.url, content=body, headers=headers).raise_for_status()
            answered[headers["X-GitHub-Delivery"]] = time.time()
    return answered


def _waits(answered: dict[str, float], taken: list[tuple[str, str, float]]) -> dict[str, float]:
    waits = [max(0.0, at - answered[delivery]) for delivery, name, at in taken if delivery in answered and name in HEALTHY]
    return {**_quantiles_ms(waits), "dispatches": len(waits), "missing": len(answered) * len(HEALTHY) - len(waits)}


def _quantiles_ms(seconds: list[float]) -> dict[str, float]:
    hundredths = statistics.quantiles(seconds, n=100)
    return {
        "p50_ms": round(hundredths[49] * 1e3, 1),
        "p99_ms": round(hundredths[98] * 1e3, 1),
        "max_ms": round(max(seconds) * 1e3, 1),
    }


if __name__ == "__main__":
    main()
