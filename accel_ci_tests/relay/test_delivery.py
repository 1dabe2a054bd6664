"""From a webhook to the downstreams, over real HTTP, with the server as a process."""

from __future__ import annotations

import fcntl
import json
import resource
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

import httpx
import pytest

from accel_ci_tests.fixtures.github_server import TOKEN, Behaviour, GitHubServer
from accel_ci_tests.fixtures.oidc_issuer import OidcIssuer
from accel_ci_tests.fixtures.postgres import POSTGRES, administer, empty_postgres
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.relay_server import SECRET, RelayServer, callback, pull_request
from accel_ci_tests.fixtures.stalling_proxy import stalling_proxy

CUT = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = :name
"""
QUICK = {"first_pause_s": 0.05, "breaker_pause_s": 0.2, "longest_pause_s": 0.4, "poll_s": 0.05, "timeout_s": 1}


@pytest.fixture
def relay(tmp_path: Path, github: GitHubServer) -> Iterator[Callable[..., RelayServer]]:
    """Makes servers that have not been started."""
    made = []

    def make(allowlist: str, **sections: Any) -> RelayServer:
        server = RelayServer(tmp_path, github.url, allowlist, **{"fan_out": QUICK, **sections})
        made.append(server)
        return server

    yield make
    for server in made:
        server.stop()


def test_every_level_gets_the_whole_webhook(relay: Callable[..., RelayServer], github: GitHubServer) -> None:
    server = relay("L1: [a/l1]\nL2: [a/l2, {a/nights: {events: [nightly]}}]\nL3: {emu: {a/l3: [bob]}}\nL4: [a/l4]\n")
    server.start()
    payload = pull_request()
    answer = server.deliver(payload, delivery="one")
    assert (answer.status_code, answer.json()) == (202, {"ok": True, "queued": True, "delivery_id": "one"})
    wait_for(lambda: len(github.dispatches) == 4)
    assert {one.repository for one in github.dispatches} == {"a/l1", "a/l2", "a/l3", "a/l4"}
    for one in github.dispatches:
        assert one.event_type == "pull_request"
        assert one.client_payload == {"event_type": "pull_request", "delivery_id": "one", "payload": payload}

    # A redelivery answers the same, and adds nothing; what comes after it is dispatched.
    again = server.deliver(payload, delivery="one")
    assert (again.status_code, again.json()) == (202, answer.json())
    server.deliver({"ref": "refs/heads/main", "repository": {"full_name": "UPSTREAM/Project"}}, "push", "two")
    server.deliver(pull_request("labeled", label={"name": "ciflow/crcr/emu"}), delivery="three")
    wait_for(lambda: len(github.dispatches) == 9)
    assert github.taken() == {
        **{(delivery, f"a/{level}"): 1 for delivery in ("one", "two") for level in ("l1", "l2", "l3", "l4")},
        ("three", "a/l3"): 1,
    }
    assert server.terminate() == 0
    assert SECRET not in server.log
    assert TOKEN not in server.log


def test_down_slow_and_limited(relay: Callable[..., RelayServer], github: GitHubServer) -> None:
    server = relay("L1: [a/good, a/down, a/recovers, a/hangs, a/refused]\n", fan_out={**QUICK, "tries": 3})
    github.behaviours["a/down"] = Behaviour(503, message="no server is available")
    github.behaviours["a/recovers"] = Behaviour(502, times=2)
    github.behaviours["a/hangs"] = Behaviour(204, delay_s=3)
    github.behaviours["a/refused"] = Behaviour(422, message="Unprocessable")
    server.start()
    assert server.deliver(pull_request(), delivery="one").status_code == 202
    wait_for(lambda: sum(one["dead"] for one in server.status().values()) == 3, every_s=0.5)
    status = server.status()
    assert {name: (one["sent"], one["dead"]) for name, one in status.items()} == {
        "a/good": (1, 0), "a/down": (0, 1), "a/recovers": (1, 0), "a/hangs": (0, 1), "a/refused": (0, 1),
    }  # fmt: skip
    assert (github.requests["a/down"], github.requests["a/recovers"], github.requests["a/refused"]) == (3, 3, 1)
    assert status["a/down"]["error"] == "HTTP 503: no server is available"
    assert status["a/hangs"]["error"] == "no answer within 1 s"

    # Dead letters come to life again when they are asked for.
    del github.behaviours["a/down"]
    assert server.command("replay").returncode == 2
    assert server.command("replay", "--downstream", "A/Down").stdout == "queued 1 again\n"
    wait_for(lambda: github.taken()["one", "a/down"] == 1)

    # A rate limit holds for all downstreams, and no try is counted.
    github.behaviours["a/good"] = Behaviour(
        403, headers={"Retry-After": "2"}, message="You have exceeded a secondary rate limit", times=1
    )
    server.deliver({"ref": "x", "repository": {"full_name": "upstream/project"}}, "push", "limited")
    wait_for(lambda: github.taken()["limited", "a/good"] == 1)
    assert "a/good, it will be tried again: HTTP 403: You have exceeded a secondary rate limit" in server.log
    assert github.requests["a/good"] == 3
    assert server.status()["*"]["failures"] == 0


def test_a_payload_over_githubs_limit_is_cut(relay: Callable[..., RelayServer], github: GitHubServer) -> None:
    server = relay("L1: [a/b]\n")
    server.start()
    payload = pull_request()
    payload["pull_request"]["body"] = "é" * 100_000
    assert server.deliver(payload).status_code == 202
    wait_for(lambda: len(github.dispatches) == 1)
    sent = github.dispatches[0].client_payload["payload"]
    assert sent["relay"] == {"left_out": ["texts over 1000 characters"]}
    assert sent["pull_request"]["head"] == payload["pull_request"]["head"]


def test_the_end_waits_for_what_is_under_way(relay: Callable[..., RelayServer], github: GitHubServer) -> None:
    server = relay("L1: [a/b]\n")
    github.behaviours["a/b"] = Behaviour(204, delay_s=0.7)
    server.start()
    server.deliver(pull_request(), delivery="one")
    wait_for(lambda: github.requests["a/b"] == 1)
    # A callback may come before GitHub has answered: the dispatch is known already.
    with closing(sqlite3.connect(server.folder / "relay.sqlite")) as database:
        assert database.execute("SELECT dispatched_at > 0, sent_at FROM relay_dispatches").fetchall() == [(1, None)]
    assert server.terminate() == 0
    assert github.taken() == {("one", "a/b"): 1}
    assert server.status()["a/b"]["sent"] == 1


def test_what_cannot_be_stored_is_not_accepted(relay: Callable[..., RelayServer], github: GitHubServer) -> None:
    server = relay("L1: [a/b]\n")
    server.start()
    with closing(sqlite3.connect(server.folder / "relay.sqlite", timeout=30)) as database:
        database.execute("ALTER TABLE relay_deliveries RENAME TO elsewhere")
        refused = server.deliver(pull_request(), delivery="one")
        assert (refused.status_code, refused.json()) == (503, {"detail": "the delivery was not stored; deliver it again"})
        wait_for(lambda: "the database refuses the relay's workers" in server.log)
        database.execute("ALTER TABLE elsewhere RENAME TO relay_deliveries")
    assert server.deliver(pull_request(), delivery="one").status_code == 202
    wait_for(lambda: github.taken() == {("one", "a/b"): 1})


@pytest.mark.parametrize("what", ["relay.sqlite", "relay.sqlite.lock"])
def test_a_database_that_is_locked_is_told_in_time(
    relay: Callable[..., RelayServer], github: GitHubServer, issuer: OidcIssuer, what: str
) -> None:
    """By a backup, or by a server that was stopped: GitHub waits for 10 s, SQLite would for minutes."""
    limits = {"request_s": 5}
    server = relay("L2: [a/b]\n", webhook=limits, callback=limits, issuers=[{"issuer": issuer.url}])
    server.start()
    assert server.deliver(pull_request(), delivery="one").status_code == 202
    wait_for(lambda: github.taken() == {("one", "a/b"): 1} and server.status()["a/b"]["sent"] == 1)
    token = issuer.token("a/b")
    with ExitStack() as stack:
        if what == "relay.sqlite":
            database = stack.enter_context(closing(sqlite3.connect(server.folder / what, timeout=30, isolation_level=None)))
            database.execute("BEGIN IMMEDIATE")
        else:
            fcntl.flock(stack.enter_context((server.folder / what).open("ab")), fcntl.LOCK_EX)
        refused = [server.deliver(pull_request(), delivery="two") for _ in range(2)]
        refused.append(server.call_back(callback("one"), token))
        assert [one.status_code for one in refused] == [503, 503, 503]
        assert server.status()["a/b"]["sent"] == 1
    assert server.deliver(pull_request(), delivery="two").status_code == 202
    assert server.call_back(callback("one"), token).status_code == 200
    wait_for(lambda: github.taken() == {("one", "a/b"): 1, ("two", "a/b"): 1})
    assert server.terminate() == 0


def test_the_workers_outlast_files_that_cannot_be_opened(relay: Callable[..., RelayServer], github: GitHubServer) -> None:
    """The lock of the database cannot be opened for a while, as when a process has no file descriptors left."""
    server = relay("L1: [a/b]\n")
    server.start()
    lock = server.folder / "relay.sqlite.lock"
    assert server.deliver(pull_request(), delivery="one").status_code == 202
    lock.unlink()
    lock.mkdir()
    refused = server.deliver(pull_request(), delivery="two")
    assert (refused.status_code, refused.json()) == (503, {"detail": "the delivery was not stored; deliver it again"})
    lock.rmdir()
    assert server.deliver(pull_request(), delivery="two").status_code == 202
    wait_for(lambda: github.taken() == {("one", "a/b"): 1, ("two", "a/b"): 1})
    assert server.terminate() == 0


def test_a_full_disk_refuses_and_loses_nothing(relay: Callable[..., RelayServer], github: GitHubServer) -> None:
    server = relay("L1: [a/b]\n")
    server.start()
    assert server.deliver(pull_request(), delivery="before").status_code == 202
    wait_for(lambda: github.taken())
    (pid,), (_, hard) = server.pids, resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(path.stat().st_size for path in server.folder.iterdir())
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest + 60_000, hard))
    large = pull_request()
    large["pull_request"]["body"] = "x" * 20_000
    taken = {name for name in map(str, range(10)) if server.deliver(large, delivery=name).status_code == 202}
    assert len(taken) < 10
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
    assert server.deliver(pull_request(), delivery="after").status_code == 202
    wait_for(lambda: {name for name, _ in github.taken()} == {"before", "after", *taken})
    assert server.terminate() == 0


def _has(github: GitHubServer, wanted: set[tuple[str, str]]) -> bool:
    return wanted <= set(github.taken())


def test_a_database_that_cuts_its_connections_loses_nothing(relay: Callable[..., RelayServer], github: GitHubServer) -> None:
    """All connections of the relay are ended again and again while deliveries come, as when PostgreSQL is restarted."""
    if POSTGRES is None:
        pytest.skip("no PostgreSQL: ACCEL_CI_POSTGRES_URL not set")
    for url in empty_postgres():
        server = relay("L1: [a/b, c/d]\n", database_url=url, fan_out={**QUICK, "lease_s": 4})
        server.start()
        taken = {"first"} if server.deliver(pull_request(), delivery="first").status_code == 202 else set[str]()
        for number in range(20):
            administer(CUT, name=parse_qs(urlsplit(url).query)["application_name"][0])
            if server.deliver(pull_request(), delivery=str(number)).status_code == 202:
                taken.add(str(number))
        assert len(taken) > 1
        wanted = {(name, to) for name in taken for to in ("a/b", "c/d")}
        wait_for(partial(_has, github, wanted))
        assert server.terminate() == 0
        assert "the database refuses" in server.log


def test_a_database_that_stops_answering_is_told_in_time(relay: Callable[..., RelayServer], github: GitHubServer) -> None:
    """Its connections stay, so that nothing fails by itself."""
    if POSTGRES is None:
        pytest.skip("no PostgreSQL: ACCEL_CI_POSTGRES_URL not set")
    for url in empty_postgres():
        place = urlsplit(url)
        with stalling_proxy(place.hostname or "", place.port or 5432) as proxy:
            through = place._replace(netloc=place.netloc.replace(f":{place.port}", f":{proxy.port}"))
            server = relay("L1: [a/b]\n", database_url=urlunsplit(through), webhook={"request_s": 5})
            server.start()
            assert server.deliver(pull_request(), delivery="one").status_code == 202
            wait_for(partial(_has, github, {("one", "a/b")}))
            proxy.flows.clear()
            assert server.deliver(pull_request(), delivery="two").status_code == 503
            assert httpx.get(server.url.replace("/github/webhook", "/healthz"), timeout=60).status_code == 503
            proxy.flows.set()
            assert server.deliver(pull_request(), delivery="two").status_code == 202
            wait_for(partial(_has, github, {("two", "a/b")}))
            assert github.taken() == {("one", "a/b"): 1, ("two", "a/b"): 1}
            assert server.terminate() == 0


def test_a_downstream_that_is_removed_gets_nothing_more_of_its_backlog(
    relay: Callable[..., RelayServer], github: GitHubServer
) -> None:
    held = threading.Event()
    github.behaviours["a/goes"] = Behaviour(held=held)
    server = relay("L1: [a/goes, a/stays]\n", fan_out={**QUICK, "timeout_s": 60, "lease_s": 120})
    server.start()
    server.deliver(pull_request(), delivery="first")
    wait_for(lambda: github.requests["a/goes"] == 1)
    for number in range(5):
        assert server.deliver(pull_request(), delivery=f"d{number}").status_code == 202
    (server.folder / "allowlist.yml").write_text("L1: [a/stays]\n")
    wait_for(lambda: "the allowlist was reloaded: 1 downstreams" in server.log)
    held.set()
    wait_for(lambda: ("first", "a/goes") in github.taken())
    server.deliver(pull_request(), delivery="last")
    wait_for(lambda: ("last", "a/stays") in github.taken())
    assert server.terminate() == 0
    assert github.requests["a/goes"] == 1, "what was under way"


def test_a_worker_in_another_process_and_a_changed_allowlist(
    relay: Callable[..., RelayServer], github: GitHubServer
) -> None:
    server = relay("L1: [a/stays, a/goes]\n")
    server.start("--no-workers")
    worker = server.start_worker("--metrics", "127.0.0.1:0")
    server.deliver(pull_request(), delivery="one")
    wait_for(lambda: len(github.dispatches) == 2)
    wait_for(lambda: "/metrics" in server.log)
    monitoring = next(line for line in server.log.splitlines() if line.endswith("/metrics"))
    sent = 'accel_ci_relay_tries_total{downstream="a/stays",end="sent"} 1.0'
    wait_for(lambda: sent in httpx.get(monitoring, timeout=30).text)
    assert httpx.get(monitoring.replace("/metrics", "/healthz"), timeout=30).json() == {"ok": True}
    assert httpx.post(monitoring.replace("/metrics", "/github/webhook"), timeout=30).status_code == 404
    (server.folder / "allowlist.yml").write_text("L1: [a/stays, a/comes, oops]\n")
    wait_for(lambda: "allowlist.yml:1: 'oops' is no repository" in server.log)
    (server.folder / "allowlist.yml").write_text("L1: [a/stays, a/comes]\n")
    wait_for(lambda: "the allowlist was reloaded: 2 downstreams" in server.log)
    server.deliver(pull_request(), delivery="two")
    wait_for(lambda: len(github.dispatches) == 4)
    assert set(github.taken()) == {("one", "a/stays"), ("one", "a/goes"), ("two", "a/stays"), ("two", "a/comes")}
    worker.terminate()
    assert worker.wait(60) == 0


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"RELAY_SECRET": ""}, "webhook_secret: $RELAY_SECRET is empty or not set"),
        ({"RELAY_TOKEN": ""}, "github.token: $RELAY_TOKEN is empty or not set"),
        ({"allowlist": "L1: [oops]\n"}, "allowlist.yml:1: 'oops' is no repository"),
    ],
)
def test_what_stops_the_start(relay: Callable[..., RelayServer], change: dict[str, str], mistake: str) -> None:
    server = relay(change.get("allowlist", ""))
    server.environment |= change
    done = server.command("serve")
    assert (done.returncode, done.stdout) == (2, "")
    assert mistake in done.stderr


def test_commands_tell_what_the_database_refuses(relay: Callable[..., RelayServer]) -> None:
    server = relay("L1: [a/b]\n")
    assert server.command("status").returncode == 0
    with closing(sqlite3.connect(server.folder / "relay.sqlite", timeout=30, isolation_level=None)) as database:
        database.execute("CREATE TRIGGER refuse BEFORE UPDATE ON relay_downstreams BEGIN SELECT RAISE(ABORT, 'away'); END")
        database.execute("INSERT INTO relay_deliveries VALUES ('d', 'push', NULL, 1, NULL, '{}')")
        database.execute("INSERT INTO relay_downstreams VALUES ('a/b', 0, 0)")
        database.execute(
            "INSERT INTO relay_dispatches (delivery, repository, queued_at, claims, failures) VALUES ('d', 'a/b', 1, 0, 0)"
        )
    done = server.command("replay", "--all")
    assert (done.returncode, done.stderr) == (
        2, "accel-ci: the relay's database refuses: away; try again once it can be used\n",
    )  # fmt: skip
    (server.folder / "relay.sqlite.lock").unlink()
    (server.folder / "relay.sqlite.lock").mkdir()
    assert server.command("status").returncode == 0
    with closing(sqlite3.connect(server.folder / "relay.sqlite", timeout=30, isolation_level=None)) as database:
        database.execute("DROP INDEX relay_dispatches_due")
    done = server.command("status")
    assert done.returncode == 2
    assert done.stderr.startswith("accel-ci: cannot use the relay's database ([Errno 21] Is a directory:")


def test_metrics_of_a_worker_need_an_address(relay: Callable[..., RelayServer]) -> None:
    done = relay("").command("work", "--metrics", "9090")
    assert done.returncode == 2
    assert "must be HOST:PORT" in done.stderr


def test_the_log_is_json_when_asked_for(relay: Callable[..., RelayServer], github: GitHubServer) -> None:
    server = relay("L1: [a/b]\n")
    server.environment["ACCEL_CI_LOG_FORMAT"] = "json"
    server.start()
    server.deliver(pull_request(), delivery="one")
    wait_for(lambda: "dispatched one" in server.log)
    lines = [json.loads(line) for line in server.log.splitlines() if not line.startswith("http")]
    assert lines[-1]["message"] == "dispatched one to a/b"
