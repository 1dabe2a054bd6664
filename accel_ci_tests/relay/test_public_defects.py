"""The defects of the public relay (2026-09), each of which this one does not have."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from accel_ci_tests.fixtures.github_server import Behaviour, GitHubServer, github_server
from accel_ci_tests.fixtures.oidc_issuer import OidcIssuer, oidc_issuer
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.relay_server import RelayServer, callback, pull_request

REPOSITORIES = ("a/again", "a/counted", "a/fast", "a/odd", "a/shaky")
PER_MINUTE = 3


@dataclass(frozen=True)
class Servers:
    """The server, and the stand-ins for GitHub and for the issuer of tokens."""

    relay: RelayServer
    github: GitHubServer
    issuer: OidcIssuer

    def dispatch(self, delivery: str, repository: str) -> None:
        """Deliver a webhook, and wait until it has reached a downstream."""
        assert self.relay.deliver(pull_request(), delivery=delivery).status_code == 202
        wait_for(lambda: (delivery, repository) in self.github.taken())

    def call(self, repository: str, body: object) -> httpx.Response:
        """Send a callback."""
        return self.relay.call_back(body, self.issuer.token(repository))

    def database(self) -> contextlib.closing[sqlite3.Connection]:
        """Open the relay's database."""
        return contextlib.closing(sqlite3.connect(self.relay.folder / "relay.sqlite", isolation_level=None, timeout=30))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A server, and the stand-ins."""
    with github_server() as github, oidc_issuer() as issuer:
        relay = RelayServer(
            tmp_path_factory.mktemp("relay"),
            github.url,
            f"L2: [{', '.join(REPOSITORIES)}]\n",
            issuers=[{"issuer": issuer.url}],
            callback={"per_minute": PER_MINUTE},
            fan_out={"first_pause_s": 0.05, "timeout_s": 30, "lease_s": 60, "poll_s": 0.05},
        )
        relay.start()
        yield Servers(relay, github, issuer)
        relay.stop()


def test_a_callback_whose_forward_failed_can_be_sent_again(servers: Servers) -> None:
    """The public one commits the step before it forwards it, and so refuses the second try as a bad transition."""
    servers.dispatch("again", "a/again")
    with servers.database() as database:
        database.execute("ALTER TABLE relay_forwards RENAME TO away")
        try:
            assert servers.call("a/again", callback("again")).status_code == 503
        finally:
            database.execute("ALTER TABLE away RENAME TO relay_forwards")
        answer = servers.call("a/again", callback("again"))
        assert (answer.status_code, answer.json()) == (200, {"ok": True, "status": "in_progress"})
        assert database.execute("SELECT count(*) FROM relay_jobs WHERE repository = 'a/again'").fetchone() == (1,)


def test_a_callback_that_is_faster_than_githubs_answer_is_taken(servers: Servers) -> None:
    """The public one notes the dispatch after GitHub's answer, and so does not know it when the callback comes."""
    held = threading.Event()
    servers.github.behaviours["a/fast"] = Behaviour(held=held, times=1)
    asked = servers.github.requests["a/fast"]
    try:
        assert servers.relay.deliver(pull_request(), delivery="fast").status_code == 202
        wait_for(lambda: servers.github.requests["a/fast"] > asked)
        answer = servers.call("a/fast", callback("fast"))
        assert (answer.status_code, answer.json()) == (200, {"ok": True, "status": "in_progress"})
        assert ("fast", "a/fast") not in servers.github.taken(), "GitHub has not answered yet"
    finally:
        held.set()
    wait_for(lambda: ("fast", "a/fast") in servers.github.taken())


def test_a_run_that_is_no_number_is_the_callers_mistake(servers: Servers) -> None:
    """The public one answers with 500."""
    servers.dispatch("odd", "a/odd")
    answer = servers.call("a/odd", callback("odd", run_id="twelve"))
    assert (answer.status_code, answer.json()) == (400, {"detail": "the body is refused: workflow.run_id: must be a number"})


def test_refused_callbacks_do_not_count_toward_the_limit(servers: Servers) -> None:
    """The public one counts each call, so that mistakes of one job stop the reports of all others."""
    servers.dispatch("counted", "a/counted")
    for number in range(2 * PER_MINUTE):
        assert servers.call("a/counted", callback("unknown", job_name=f"job {number}")).status_code == 400
        assert servers.call("a/counted", callback("counted", "completed", job_name=f"job {number}")).status_code == 400
    for number in range(PER_MINUTE):
        assert servers.call("a/counted", callback("counted", job_name=f"job {number}")).status_code == 200
    answer = servers.call("a/counted", callback("counted", job_name="one too many"))
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= 60


def test_a_failed_dispatch_is_tried_again(servers: Servers) -> None:
    """The public one sends once, and forgets what failed."""
    asked = servers.github.requests["a/shaky"]
    servers.github.behaviours["a/shaky"] = Behaviour(500, times=2)
    servers.dispatch("shaky", "a/shaky")
    assert servers.github.requests["a/shaky"] == asked + 3
