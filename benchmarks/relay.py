"""The speed of the relay's server: `python -m benchmarks.relay [--seconds S] [--postgresql] [--json]`.

`python -m benchmarks.relay --memory 1000000` is about memory instead, and ends with 1 where it grows.

Three questions. How many webhooks are accepted each second: `--connections` connections send 20 KB webhooks one after the
other, to a server without workers, to one with a worker in a process beside it, to one that dispatches itself, and to the
peer, which checks the signature and stores nothing. How long does an answer take at `--offered` webhooks a second, counted
from when each was due. How long do healthy downstreams wait when others are slow or down: `--rate` deliveries a second go to
20 downstreams, of which three take 2 s for an answer and two answer with errors; measured is the time from the answer to the
webhook until the downstream has it.

The load, the server and the stand-in for GitHub share the cores of this machine, so the processor time for each webhook is
printed, too; it depends less on what else runs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import psutil

from accel_ci_tests.fixtures.github_server import Behaviour, GitHubServer
from accel_ci_tests.fixtures.postgres import empty_postgres
from accel_ci_tests.fixtures.relay_server import RelayServer, headers_for
from benchmarks.relay_load import quantiles_ms, send_webhooks, serve_peer, webhook
from benchmarks.relay_memory import measure_memory

HEALTHY = [f"healthy/d{number}" for number in range(15)]
SLOW = [f"slow/d{number}" for number in range(3)]
DOWN = [f"down/d{number}" for number in range(2)]
SLOW_S = 2.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="length of each of the measurements")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--offered", type=float, default=1000, help="webhooks each second, for the times of answers")
    parser.add_argument("--rate", type=float, default=2, help="deliveries each second, for the waits of healthy downstreams")
    parser.add_argument("--postgresql", action="store_true", help="use the database of ACCEL_CI_POSTGRES_URL, not SQLite")
    parser.add_argument("--memory", type=int, metavar="N", help="measure memory over N deliveries, and nothing else")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = _memory(options.memory, options.postgresql) if options.memory else _speed(options)
    text = json.dumps(found, indent=2) if options.json else "\n".join(f"{name}: {value}" for name, value in found.items())
    sys.stdout.write(text + "\n")
    if options.memory and not (found["server"]["flat"] and found["worker"]["flat"]):
        raise SystemExit(1)


def _memory(deliveries: int, postgresql: bool) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(contextmanager(empty_postgres)()) if postgresql else None
        return measure_memory(folder, deliveries, database)


def _speed(options: argparse.Namespace) -> dict[str, Any]:
    body = webhook()
    found: dict[str, Any] = {
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "database": "postgresql" if options.postgresql else "sqlite",
        "bytes": len(body),
    }
    with _process(serve_peer) as (peer, pipe):
        found["peer"] = _measure(pipe.recv(), [int(peer.pid or 0)], body, options.connections, options.seconds)
    with _process(_stand_in) as (_, pipe):
        github = pipe.recv()
        for workers in ("none", "beside", "inside"):
            with _relay(github, options.postgresql) as relay:
                relay.start(*([] if workers == "inside" else ["--no-workers"]))
                if workers == "beside":
                    relay.start_worker()
                name = f"accepted_with_workers_{workers}"
                found[name] = _measure(relay.url, relay.pids[:1], body, options.connections, options.seconds)
        with _relay(github, options.postgresql) as relay:
            relay.start("--no-workers")
            found["answers_at_the_offered_rate"] = {
                "offered": options.offered,
                **_measure(relay.url, relay.pids, body, options.connections, options.seconds, options.offered),
            }
        with _relay(github, options.postgresql) as relay:
            relay.start()
            answered = _deliver_steadily(relay, body, options.rate, options.seconds)
            time.sleep(SLOW_S + 1)
            pipe.send("taken")
            found["waits_of_healthy"] = _waits(answered, pipe.recv())
        pipe.send("end")
    reached = found["accepted_with_workers_none"]
    found["ratio_to_peer"] = {
        "rate": round(reached["per_second"] / found["peer"]["per_second"], 2),
        "cpu": round(reached["server_cpu_ms"] / found["peer"]["server_cpu_ms"], 2),
    }
    return found


def _measure(
    url: str, pids: Sequence[int], body: bytes, connections: int, seconds: float, rate: float | None = None
) -> dict[str, float]:
    """Send webhooks, after a short warm-up; add the processor time of the server for each of them."""
    send_webhooks(url, body, connections, count=200)
    before = _cpu_s(pids)
    load = send_webhooks(url, body, connections, seconds=seconds, rate=rate)
    return {**load.summary(), "server_cpu_ms": round((_cpu_s(pids) - before) / len(load.times) * 1e3, 3)}


def _cpu_s(pids: Sequence[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


@contextmanager
def _process(target: Any) -> Iterator[tuple[Any, Connection]]:
    """Run a function with one end of a pipe in a new process; it ends afterwards."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(theirs,), daemon=True)
    process.start()
    try:
        yield process, ours
    finally:
        process.terminate()
        process.join(10)


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


def _deliver_steadily(relay: RelayServer, body: bytes, rate: float, seconds: float) -> dict[str, float]:
    """Deliver at a steady rate; return the time of each answer."""
    answered, began = {}, time.time()
    with httpx.Client(timeout=30) as client:
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, began + number / rate - time.time()))
            headers = headers_for(body)
            client.post(relay.url, content=body, headers=headers).raise_for_status()
            answered[headers["X-GitHub-Delivery"]] = time.time()
    return answered


def _waits(answered: dict[str, float], taken: list[tuple[str, str, float]]) -> dict[str, float]:
    waits = [max(0.0, at - answered[delivery]) for delivery, name, at in taken if delivery in answered and name in HEALTHY]
    return {**quantiles_ms(waits), "dispatches": len(waits), "missing": len(answered) * len(HEALTHY) - len(waits)}


if __name__ == "__main__":
    main()
