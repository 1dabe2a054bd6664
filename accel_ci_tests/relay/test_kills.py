"""Servers and workers are killed at random under load.

No accepted delivery is lost, and every downstream gets each. No step of a job that was taken is lost, and none is doubled.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from accel_ci.relay.results_store import ResultsStore
from accel_ci.relay.server.outbox import job_key
from accel_ci_tests.fixtures.github_server import Behaviour, GitHubServer
from accel_ci_tests.fixtures.oidc_issuer import OidcIssuer
from accel_ci_tests.fixtures.postgres import POSTGRES, empty_postgres
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.relay_server import RelayServer, callback, pull_request

KILLS = int(os.environ.get("ACCEL_CI_RELAY_KILLS", "3"))
GOOD = [f"a/good{number}" for number in range(4)]
DOWNSTREAMS = [*GOOD, "a/flaky", "a/slow"]
REPORTING = "a/good0"
"""It sends callbacks for each dispatch, and has check runs."""
_VICTIMS = ("server 0", "server 1", "worker")


@pytest.mark.timeout(180 + 15 * KILLS)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_killed_under_load(tmp_path: Path, github: GitHubServer, issuer: OidcIssuer, database: str) -> None:
    """Two servers that dispatch, and a worker beside them, share a database; a victim is started again at once."""
    if database == "postgresql" and POSTGRES is None:
        pytest.skip("no PostgreSQL: ACCEL_CI_POSTGRES_URL not set")
    schema = empty_postgres() if database == "postgresql" else None
    github.behaviours["a/flaky"] = Behaviour(502, times=20 * KILLS)
    github.behaviours["a/slow"] = Behaviour(204, delay_s=0.1)
    relays = _replicas(tmp_path, github.url, issuer.url, None if schema is None else next(schema))
    first = relays[0]
    accepted: set[str] = set()
    killed: Counter[str] = Counter()
    over = threading.Event()
    load = [threading.Thread(target=_deliver, args=(relays, accepted, over)) for _ in range(4)]
    reported: dict[str, str] = {}
    load.append(threading.Thread(target=_report, args=(relays, github, issuer, reported, over)))
    try:
        for relay in relays:
            relay.start()
        worker = first.start_worker()
        for thread in load:
            thread.start()
        chance = random.Random(database)
        # Each is a victim once before chance decides, so that a short run kills them all, too.
        victims = itertools.chain(["server 0", "worker", "server 1"], iter(lambda: chance.choice(_VICTIMS), ""))
        for victim in itertools.islice(victims, KILLS):
            before = len(accepted)
            wait_for(lambda before=before: len(accepted) > before + 5)  # type: ignore[misc]
            time.sleep(chance.random())
            if victim == "worker":
                worker.kill()
                worker.wait(30)
                worker = first.start_worker()
            else:
                relay = relays[int(victim[-1])]
                relay.kill()
                relay.start()
            killed[victim] += 1
        over.set()
        for thread in load:
            thread.join(60)
        expected = {(delivery, repository) for delivery in accepted for repository in DOWNSTREAMS}
        wait_for(lambda: expected <= set(github.taken()), 90, every_s=0.2)
        wait_for(lambda: all(one["waiting"] == 0 for one in first.status().values()), every_s=0.5)
        wait_for(lambda: _unsent_forwards(first) == (0, 0), 90, every_s=0.5)
        taken, status = github.taken(), first.status()
    finally:
        over.set()
        for relay in relays:
            relay.stop()
        if schema is not None:
            list(schema)
    # One row for each key, however often it was sent; what was stored and not answered is dispatched, too.
    stored = {delivery for delivery, _ in taken}
    assert accepted <= stored
    assert {name: (one["sent"], one["dead"]) for name, one in status.items()} == dict.fromkeys(DOWNSTREAMS, (len(stored), 0))
    repeated = sum(count - 1 for count in taken.values())
    counts = f"{len(accepted)} accepted, {len(stored)} stored, {len(taken)} keys, {repeated} sent again"
    print(f"{database}: killed {dict(killed)}; {counts}")
    # Each job has one check run, in the state of its last step, and one row for each step.
    rows = ResultsStore(tmp_path / "results").rows(0, time.time() + 60)
    jobs = {row.delivery_id: row for row in rows}
    assert len(jobs) == len(rows)
    assert {delivery: row.status for delivery, row in jobs.items() if delivery in reported} == reported
    runs = [(run["external_id"], run["status"]) for run in github.check_runs.runs.values()]
    assert sorted(runs) == sorted((job_key(row), row.status) for row in rows)
    print(f"{database}: {len(reported)} jobs reported, {len(runs)} check runs")
    # Only what was under way at a kill is sent again.
    assert repeated <= KILLS * 2 * len(DOWNSTREAMS)


def _unsent_forwards(relay: RelayServer) -> tuple[int, int]:
    """The forwards of all jobs that wait, and those that are dead."""
    jobs = json.loads(relay.command("status", "--json").stdout)["jobs"]
    return sum(one["forwards_waiting"] for one in jobs), sum(one["forwards_dead"] for one in jobs)


def _report(
    relays: Sequence[RelayServer],
    github: GitHubServer,
    issuer: OidcIssuer,
    reported: dict[str, str],
    over: threading.Event,
) -> None:
    """Send both callbacks for each dispatch to one of the servers, again after errors; keep the last step that was taken."""
    turns, place = itertools.cycle(relays), 0
    while not over.is_set():
        if place == len(github.dispatches):
            time.sleep(0.02)
            continue
        one = github.dispatches[place]
        place += 1
        steps = ("in_progress", "completed") if one.repository == REPORTING and one.delivery not in reported else ()
        for status in steps:
            # The last one is sent until it is answered, too: otherwise nobody knows whether it was taken.
            for _ in range(1000):
                try:
                    answer = next(turns).call_back(callback(one.delivery, status), issuer.token(REPORTING))
                except httpx.HTTPError:
                    time.sleep(0.02)
                    continue
                if answer.status_code != 503:
                    reported[one.delivery] = status if answer.status_code == 200 else answer.text
                    break


def _replicas(folder: Path, github: str, issuer: str, database_url: str | None) -> list[RelayServer]:
    """Two servers on one database."""
    tries = {
        "first_pause_s": 0.05, "longest_pause_s": 0.2, "tries": 1000, "poll_s": 0.05, "timeout_s": 5, "lease_s": 10,
    }  # fmt: skip
    relays = []
    for number in range(2):
        (own := folder / f"server{number}").mkdir()
        database_file = str(folder / "relay.sqlite")
        relays.append(
            RelayServer(
                own,
                github,
                f"L1: [{', '.join(set(DOWNSTREAMS) - {REPORTING})}]\nL4: [{REPORTING}]\n",
                database_url,
                database_file=database_file,
                fan_out={**tries, "breaker_pause_s": 0.1},
                issuers=[{"issuer": issuer}],
                callback={"per_minute": 10_000},
                results={"folder": str(folder / "results")},
                forwards=tries,
            )
        )
    return relays


def _deliver(relays: Sequence[RelayServer], accepted: set[str], over: threading.Event) -> None:
    """Deliver to the servers in turn, as GitHub would if it tried again after errors: with the same id."""
    turns = itertools.cycle(relays)
    while not over.is_set():
        delivery = str(uuid.uuid4())
        while not over.is_set():
            try:
                answer = next(turns).deliver(pull_request(), delivery=delivery)
            except httpx.HTTPError:
                time.sleep(0.02)
                continue
            if answer.status_code == 202:
                accepted.add(delivery)
                break
        time.sleep(0.02)
