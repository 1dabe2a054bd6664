"""The server is killed at random under load: no delivery that was accepted is lost, and every downstream gets each."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from pathlib import Path

import httpx
import pytest

from accel_ci_tests.fixtures.github_server import Behaviour, GitHubServer
from accel_ci_tests.fixtures.postgres import POSTGRES, empty_postgres
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.relay_server import RelayServer, pull_request

KILLS = int(os.environ.get("ACCEL_CI_RELAY_KILLS", "2"))
GOOD = [f"a/good{number}" for number in range(4)]
DOWNSTREAMS = [*GOOD, "a/flaky", "a/slow"]


@pytest.mark.timeout(120 + 15 * KILLS)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_killed_under_load(tmp_path: Path, github: GitHubServer, database: str) -> None:
    if database == "postgresql" and POSTGRES is None:
        pytest.skip("no PostgreSQL: ACCEL_CI_POSTGRES_URL not set")
    schema = empty_postgres() if database == "postgresql" else None
    github.behaviours["a/flaky"] = Behaviour(502, times=20 * KILLS)
    github.behaviours["a/slow"] = Behaviour(204, delay_s=0.1)
    relay = RelayServer(
        tmp_path,
        github.url,
        f"L1: [{', '.join(DOWNSTREAMS)}]\n",
        None if schema is None else next(schema),
        fan_out={
            "first_pause_s": 0.05, "longest_pause_s": 0.2, "breaker_pause_s": 0.1, "tries": 1000, "poll_s": 0.05,
            "timeout_s": 3, "lease_s": 6,
        },
    )  # fmt: skip
    accepted: set[str] = set()
    over = threading.Event()
    load = [threading.Thread(target=_deliver, args=(relay, accepted, over)) for _ in range(4)]
    try:
        relay.start()
        for thread in load:
            thread.start()
        chance = random.Random(database)
        for _ in range(KILLS):
            before = len(accepted)
            wait_for(lambda before=before: len(accepted) > before + 5)  # type: ignore[misc]
            time.sleep(chance.random())
            relay.kill()
            relay.start()
        over.set()
        for thread in load:
            thread.join(60)
        expected = {(delivery, repository) for delivery in accepted for repository in DOWNSTREAMS}
        wait_for(lambda: expected <= set(github.taken()), 90, every_s=0.2)
        wait_for(lambda: all(one["waiting"] == 0 for one in relay.status().values()), every_s=0.5)
        taken, status = github.taken(), relay.status()
    finally:
        over.set()
        relay.stop()
        if schema is not None:
            list(schema)
    # One row for each key, however often it was sent; what was stored and not answered is dispatched, too.
    stored = {delivery for delivery, _ in taken}
    assert accepted <= stored
    assert {name: (one["sent"], one["dead"]) for name, one in status.items()} == dict.fromkeys(DOWNSTREAMS, (len(stored), 0))
    repeated = sum(count - 1 for count in taken.values())
    print(f"{KILLS} kills, {len(accepted)} accepted, {len(stored)} stored, {len(taken)} keys, {repeated} sent again")
    # Only what was under way at a kill is sent again.
    assert repeated <= KILLS * 2 * len(DOWNSTREAMS)


def _deliver(relay: RelayServer, accepted: set[str], over: threading.Event) -> None:
    """Deliver as GitHub would if it tried again after errors: with the same id."""
    while not over.is_set():
        delivery = str(uuid.uuid4())
        while not over.is_set():
            try:
                answer = relay.deliver(pull_request(), delivery=delivery)
            except httpx.HTTPError:
                time.sleep(0.02)
                continue
            if answer.status_code == 202:
                accepted.add(delivery)
                break
        time.sleep(0.02)
