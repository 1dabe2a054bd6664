"""Forwards over real HTTP, to a stand-in for GitHub and to stores, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from accel_ci.github.authorization import FixedToken
from accel_ci.relay.results_store import ResultsStore
from accel_ci.relay.rows import JobRow
from accel_ci.relay.server.database import RelayDatabase
from accel_ci.relay.server.dispatch import GitHubClient
from accel_ci.relay.server.forward import Forwarder, Lane, Sink, check_runs, rows_for
from accel_ci.relay.server.jobs import Jobs
from accel_ci.relay.server.metrics import RelayMetrics
from accel_ci.relay.server.outbox import Destination, DestinationStatus, Forward, Outbox, enqueue
from accel_ci.relay.server.queue import Queue
from accel_ci.relay.server.settings import CallbackSettings, ForwardSettings
from accel_ci_tests.fixtures.github_check_runs import Fault
from accel_ci_tests.fixtures.github_server import TOKEN, GitHubServer
from accel_ci_tests.fixtures.postgres import POSTGRES, empty_postgres
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.relay_rows import NOW, begun, ended
from accel_ci_tests.fixtures.relay_server import RelayServer

FAST = ForwardSettings(
    first_pause_s=0.02, longest_pause_s=0.1, breaker_pause_s=0.02, tries=6, poll_s=0.02, timeout_s=20, lease_s=60
)
AWAY = "http://127.0.0.1:9"


@dataclass
class Relay:
    """A relay's database, and the ways out of it."""

    url: str
    database: RelayDatabase
    folder: Path
    github: str

    def put(self, *rows: JobRow, to: Sequence[Destination] = ("check_run",), at: float | None = None) -> None:
        """Put rows into the outbox."""
        with self.database.write() as connection:
            forwards = [Forward(destination, row) for row in rows for destination in to]
            enqueue(self.database, connection, forwards, at or time.time())

    def status(self, destination: Destination) -> DestinationStatus:
        """The forwards to a destination."""
        return next(one for one in Outbox(self.database).status(NOW) if one.destination == destination)

    def forward(self, *until: Destination, sinks: dict[Destination, Sink] | None = None) -> None:
        """Forward until nothing waits for some destinations."""
        self.forward_while(
            lambda: any(self.status(destination).waiting for destination in until), sinks if sinks is not None else {}
        )

    def forward_while(self, condition: Callable[[], bool], sinks: dict[Destination, Sink]) -> None:
        """Forward while a condition holds."""

        async def run() -> None:
            outbox = Outbox(self.database)
            github = GitHubClient(self.github, FixedToken(TOKEN), 10)
            metrics = RelayMetrics(Queue(self.database), Jobs(self.database, "a/b", CallbackSettings()), outbox)
            lanes = [Lane("check_run", check_runs(github, FAST), 4)]
            for destination, sink in sinks.items():
                then: tuple[Destination, ...] = ("clickhouse",) if destination == "results" and len(sinks) > 1 else ()
                lanes.append(Lane(destination, rows_for(sink), 10, True, then))
            forwarder = Forwarder(outbox, lanes, FAST, metrics)
            running = asyncio.create_task(forwarder.run())
            await asyncio.to_thread(wait_for, lambda: not condition())
            forwarder.stop()
            await running
            await github.close()

        asyncio.run(run())


@pytest.fixture(params=["sqlite", "postgresql"])
def relay(request: pytest.FixtureRequest, tmp_path: Path, github: GitHubServer) -> Iterator[Relay]:
    """An empty outbox."""
    if request.param == "sqlite":
        urls = iter([f"sqlite:///{tmp_path / 'relay.sqlite'}"])
    elif POSTGRES is None:
        pytest.skip("no PostgreSQL: ACCEL_CI_POSTGRES_URL not set")
    else:
        urls = empty_postgres()
    url = next(urls)
    database = RelayDatabase(url)
    yield Relay(url, database, tmp_path, github.url)
    database.close()
    list(urls)


class Picky:
    """A store that refuses some jobs, and never takes a batch in which one of them is."""

    def __init__(self, *refused: str) -> None:
        self.refused, self.rows = refused, list[JobRow]()

    def add(self, rows: Sequence[JobRow]) -> None:
        """Add rows."""
        if any(row.job_name in self.refused for row in rows):
            raise ValueError("a value does not fit")
        self.rows += rows


def test_one_check_run_from_the_beginning_to_the_end(relay: Relay, github: GitHubServer) -> None:
    relay.put(begun(), ended(conclusion="failure"), begun(job_name="other"))
    relay.forward("check_run")
    runs = {run["name"].rpartition("/")[2]: run for run in github.check_runs.runs.values()}
    assert (runs["py311~smoke"]["conclusion"], runs["py311~smoke"]["status"]) == ("failure", "completed")
    assert runs["other"]["status"] == "in_progress"
    assert len(github.check_runs.runs) == 2
    assert ("GET", "") not in github.check_runs.steps
    relay.put(ended(conclusion="success"))
    relay.forward("check_run")
    assert len(github.check_runs.runs) == 2, "a corrected end changes the check run that is there"
    assert runs["py311~smoke"]["conclusion"] == "success"


def test_server_errors_are_tried_again_in_order(relay: Relay, github: GitHubServer) -> None:
    github.check_runs.fault = Fault(502, times=3)
    relay.put(begun(), ended())
    relay.forward("check_run")
    assert github.check_runs.steps == [("POST", "in_progress"), ("PATCH", "completed")]
    assert relay.status("check_run").sent == 2


@pytest.mark.parametrize("row", [begun(), ended()], ids=["begun", "ended"])
def test_a_creation_without_an_answer_is_found_again(relay: Relay, github: GitHubServer, row: JobRow) -> None:
    github.check_runs.fault = Fault(504, is_done=True, method="POST")
    relay.put(row)
    relay.forward("check_run")
    assert [method for method, _ in github.check_runs.steps] == ["POST", "PATCH"]
    assert len(github.check_runs.runs) == 1


def test_a_rate_limit_pauses_github_alone(relay: Relay, github: GitHubServer) -> None:
    github.check_runs.fault = Fault(403, headers={"Retry-After": "1"})
    store = ResultsStore(relay.folder / "results")
    relay.put(*(begun(job_name=f"j{number}") for number in range(3)), to=("check_run",))
    relay.put(begun(), to=("results",))
    relay.forward("check_run", "results", sinks={"results": store})
    assert relay.status("check_run").sent == 3
    assert len(store.rows(NOW - 1, NOW + 1)) == 1


def test_a_refused_check_run_is_a_dead_letter_and_its_end_goes_ahead(relay: Relay, github: GitHubServer) -> None:
    github.check_runs.fault = Fault(422, times=2)
    relay.put(begun(), begun(job_name="other"))
    relay.forward("check_run")
    status = relay.status("check_run")
    assert (status.dead, status.error) == (2, "HTTP 422: as told")
    relay.put(ended())
    relay.forward("check_run")
    assert [run["status"] for run in github.check_runs.runs.values()] == ["completed"]
    assert Outbox(relay.database).replay(time.time()) == 1
    relay.forward("check_run")
    assert sorted(run["status"] for run in github.check_runs.runs.values()) == ["completed", "in_progress"]
    assert relay.status("check_run").dead == 0


def test_a_row_of_which_no_check_run_can_be_made_ends_as_a_dead_letter(relay: Relay, github: GitHubServer) -> None:
    relay.put(begun(started_at=1e30), begun(job_name="other"))
    relay.forward("check_run")
    status = relay.status("check_run")
    assert (status.sent, status.dead) == (1, 1)
    assert len(github.check_runs.runs) == 1


def test_github_is_down_and_results_go_on(relay: Relay) -> None:
    relay.github = AWAY
    store = ResultsStore(relay.folder / "results")
    jobs = [row for number in range(30) for row in (begun(job_name=f"j{number}"), ended(job_name=f"j{number}"))]
    relay.put(*jobs, to=("check_run", "results"))
    relay.forward("results", sinks={"results": store})
    assert len(store.rows(NOW - 1, NOW + 100)) == 30
    assert relay.status("check_run").sent == 0


def test_a_row_that_no_store_takes_holds_up_no_other(relay: Relay) -> None:
    store = Picky("bad")
    names = ["bad", *(f"good{number}" for number in range(25))]
    relay.put(*(begun(job_name=name) for name in names), to=("results",))
    relay.forward("results", sinks={"results": store})
    assert {row.job_name for row in store.rows} == set(names) - {"bad"}
    status = relay.status("results")
    assert (status.sent, status.dead, status.error) == (25, 1, "ValueError: a value does not fit")


def test_a_second_store_that_is_down_does_not_hold_up_the_first(relay: Relay) -> None:
    first, second = Picky(), Picky("one", "two")
    relay.put(begun(job_name="one"), begun(job_name="two"), to=("results",))
    relay.forward("results", sinks={"results": first, "clickhouse": second})
    assert len(first.rows) == 2
    second.refused = ()
    Outbox(relay.database).replay(time.time())
    relay.forward("clickhouse", sinks={"results": first, "clickhouse": second})
    assert {row.job_name for row in second.rows} == {"one", "two"}
    assert len(first.rows) == 2, "each store gets each row once"


def test_the_commands_show_and_replay_forwards(tmp_path: Path, github: GitHubServer) -> None:
    server = RelayServer(tmp_path, github.url, "L4: [{org/backend: ann}]\n")
    database = RelayDatabase(f"sqlite:///{tmp_path / 'relay.sqlite'}")
    relay = Relay("", database, tmp_path, github.url)
    relay.put(begun(), to=("check_run", "results"))
    Outbox(database).give_up(time.time() + 1)
    assert server.command("replay", "--downstream", "ORG/backend").stdout == "queued 2 again\n"
    shown = server.command("status").stdout
    assert "forwards to check_run: 1 waiting (the oldest for " in shown
    (first, second) = json.loads(server.command("status", "--json").stdout)["forwards"]
    assert (first["destination"], first["waiting"], second["destination"]) == ("check_run", 1, "results")
    database.close()


def test_a_worker_is_killed_between_the_creation_and_its_own_note(tmp_path: Path, github: GitHubServer) -> None:
    server = RelayServer(
        tmp_path, github.url, "L4: [{org/backend: ann}]\n", forwards={"lease_s": 4, "timeout_s": 2, "poll_s": 0.05}
    )
    database = RelayDatabase(f"sqlite:///{tmp_path / 'relay.sqlite'}")
    relay = Relay("", database, tmp_path, github.url)
    relay.put(begun(), ended(), to=("check_run", "results"))
    try:
        worker = server.start_worker()

        def kill(method: str) -> None:
            github.check_runs.before_answer = None
            worker.kill()
            worker.wait(30)

        github.check_runs.before_answer = kill
        wait_for(lambda: worker.poll() is not None)
        assert worker.returncode == -signal.SIGKILL
        second = server.start_worker()
        wait_for(lambda: relay.status("check_run").sent == 2 and relay.status("results").sent == 2)
        assert len(github.check_runs.runs) == 1
        assert [method for method, _ in github.check_runs.steps] == ["POST", "PATCH", "PATCH"]
        assert [row.conclusion for row in ResultsStore(tmp_path / "results").rows(NOW - 1, NOW + 100)] == ["success"]
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0
    finally:
        server.stop()
        database.close()
    assert TOKEN not in server.log
