"""The transactions of the server's jobs, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from accel_ci.relay.allowlist import Downstream
from accel_ci.relay.rows import JobRow
from accel_ci.relay.server.callback import parse_callback
from accel_ci.relay.server.database import RelayDatabase
from accel_ci.relay.server.jobs import JOBS, Call, Jobs, Outcome, Refused, Taken
from accel_ci.relay.server.outbox import FORWARDS
from accel_ci.relay.server.payload import dispatch_body
from accel_ci.relay.server.queue import Queue, Settlement
from accel_ci.relay.server.settings import CallbackSettings
from accel_ci.relay.server.webhook import Delivery
from accel_ci_tests.fixtures.relay_server import UPSTREAM, callback, pull_request, report

NOW, LEASE_S = 1_800_000_000.0, 60.0
REPOSITORY = Downstream("a/b", "L4")
OTHER = Downstream("c/d", "L2")
BODY = dispatch_body("pull_request", "pr", pull_request(), json.dumps(pull_request()).encode())[0]
SETTINGS = CallbackSettings(per_minute=5, keep_s=1000, zombie_s=600)


@pytest.fixture
def database(url: str) -> Iterator[RelayDatabase]:
    """An empty database with the delivery `pr` dispatched to both repositories."""
    database = RelayDatabase(url)
    queue = Queue(database)
    queue.store([(Delivery("pr", "pull_request", None, BODY), NOW)])
    queue.expand(lambda event, device: ["a/b", "c/d"], NOW)
    queue.claim([("a/b", 1), ("c/d", 1)], NOW, LEASE_S)
    yield database
    database.close()


@pytest.fixture
def jobs(database: RelayDatabase) -> Jobs:
    """The jobs of it."""
    return Jobs(database, UPSTREAM, SETTINGS)


def call(status: str = "in_progress", at: float = NOW + 10, downstream: Downstream = REPOSITORY, **changes: Any) -> Call:
    return Call(parse_callback(callback("pr", status, **changes), UPSTREAM), downstream, at)


def take(jobs: Jobs, *calls: Call) -> list[str | int]:
    """Take callbacks together; return the steps, or the statuses of those that were refused."""
    return [_brief(one) for one in jobs.take(calls)]


def _brief(outcome: Outcome) -> str | int:
    return outcome.status if isinstance(outcome, Refused) else outcome.step


def forwards(database: RelayDatabase) -> list[tuple[str, str]]:
    with database.read() as connection:
        found = connection.execute(sa.select(FORWARDS).order_by(FORWARDS.c.queued_at, FORWARDS.c.destination))
        return [(one.status, one.destination) for one in found]


def test_a_batch_is_taken_one_by_one(jobs: Jobs, database: RelayDatabase) -> None:
    ends = take(
        jobs, call("completed"), call(), call(), call(downstream=OTHER), call(job_name="two"), call("completed"),
        call("completed", conclusion="failure"),
    )  # fmt: skip
    assert ends == [400, "in_progress", "known", "in_progress", "in_progress", "completed", 400]
    assert sorted(forwards(database)) == [
        ("completed", "check_run"), ("completed", "results"),
        *[("in_progress", "check_run")] * 2, *[("in_progress", "results")] * 3,
    ]  # fmt: skip


def test_a_step_that_fails_leaves_nothing(jobs: Jobs, database: RelayDatabase) -> None:
    """The forwards cannot be written: the step has not been taken, and the same callback succeeds later."""
    with database.write() as connection:
        connection.execute(sa.text("ALTER TABLE relay_forwards RENAME TO away"))
    with pytest.raises(sa.exc.SQLAlchemyError):
        jobs.take([call()])
    with database.write() as connection:
        connection.execute(sa.text("ALTER TABLE away RENAME TO relay_forwards"))
        assert connection.scalar(sa.select(sa.func.count()).select_from(JOBS)) == 0
    assert take(jobs, call(), call("completed")) == ["in_progress", "completed"]


def test_two_servers_take_a_step_once(url: str, database: RelayDatabase) -> None:
    """Servers of their own take the same callbacks at once, in different orders: each step is taken by one of them."""
    calls = [call(job_name=f"job {number}", downstream=one) for number in range(10) for one in (REPOSITORY, OTHER)]
    settings = SETTINGS.model_copy(update={"per_minute": 100})
    barrier, ends = threading.Barrier(4), list[str | int]()

    def serve(order: int) -> None:
        mine = RelayDatabase(url)
        barrier.wait(30)
        for number in range(0, 20, 2):
            ends.extend(take(Jobs(mine, UPSTREAM, settings), *calls[number : number + 2][::order]))
        mine.close()

    threads = [threading.Thread(target=serve, args=(order,)) for order in (1, -1, 1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (ends.count("in_progress"), ends.count("known")) == (20, 60)
    assert len(forwards(database)) == 30


def test_two_servers_share_the_window(url: str, database: RelayDatabase) -> None:
    barrier, ends = threading.Barrier(3), list[str | int]()

    def serve(server: int) -> None:
        mine = RelayDatabase(url)
        barrier.wait(30)
        for number in range(5):
            ends.extend(take(Jobs(mine, UPSTREAM, SETTINGS), call(job_name=f"{server} {number}")))
        mine.close()

    threads = [threading.Thread(target=serve, args=(server,)) for server in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (ends.count("in_progress"), ends.count(429)) == (5, 10)


def test_the_window_slides_and_counts_what_was_taken(jobs: Jobs) -> None:
    for second in range(20):
        assert take(jobs, call("completed", at=NOW + second)) == [400]
    for second in range(5):
        name = f"job {second}"
        assert take(jobs, call(at=NOW + second, job_name=name), call(at=NOW + second, job_name=name))[0] == "in_progress"
    assert take(jobs, call(at=NOW + 5, job_name="over"), call(at=NOW + 5, downstream=OTHER)) == [429, "in_progress"]
    (refused,) = jobs.take([call(at=NOW + 10.5, job_name="over")])
    assert isinstance(refused, Refused)
    assert refused.retry_after_s == 50
    assert take(jobs, call(at=NOW + 59.9, job_name="over")) == [429]
    assert take(jobs, call(at=NOW + 60, job_name="over"), call(at=NOW + 60, job_name="more")) == ["in_progress", 429]


def test_a_clock_that_is_set_back_refuses_nobody_for_long(jobs: Jobs) -> None:
    for name in range(5):
        assert take(jobs, call(at=NOW + 900, job_name=f"job {name}")) == ["in_progress"]
    assert take(jobs, call(at=NOW + 900, job_name="over"), call(at=NOW + 10, job_name="back")) == [429, "in_progress"]


def test_the_case_of_a_repository_does_not_count(jobs: Jobs) -> None:
    """The allowlist writes it in another way than at the beginning of the job, perhaps on one of two servers alone."""
    other = replace(REPOSITORY, repository="A/b")
    assert take(jobs, call(), call(downstream=other), call("completed", downstream=other)) == [
        "in_progress", "known", "completed",
    ]  # fmt: skip
    names = [call(job_name=f"job {number}", downstream=(REPOSITORY, other)[number % 2]) for number in range(4)]
    assert take(jobs, *names) == ["in_progress"] * 3 + [429], "one window for both"
    assert [one.repository for one in jobs.status()] == ["A/b", "a/b"]


def test_a_stored_job_that_cannot_be_read_refuses_its_callbacks_alone(jobs: Jobs, database: RelayDatabase) -> None:
    take(jobs, call())
    with database.write() as connection:
        connection.execute(sa.update(JOBS).values(row=b'{"delivery_id": "pr"}'))
    assert take(jobs, call("completed"), call(job_name="good")) == [400, "in_progress"]
    assert [one.row.job_name for one in jobs.overdue(NOW + 10_000, LEASE_S)] == ["good"]


def test_a_dispatch_is_known_from_its_claim_on(jobs: Jobs, database: RelayDatabase) -> None:
    queue = Queue(database)
    queue.store([(Delivery("next", "pull_request", None, BODY), NOW)])
    queue.expand(lambda event, device: ["a/b"], NOW)
    later = Call(parse_callback(callback("next"), UPSTREAM), REPOSITORY, NOW + 10)
    assert take(jobs, later) == [400]
    ((claim,),) = queue.claim([("a/b", 1)], NOW + 3, LEASE_S)
    (found,) = jobs.take([later])
    assert isinstance(found, Taken)
    assert (found.row.dispatched_at, found.row.queue_s) == (NOW + 3, 7)
    queue.settle([Settlement(claim, NOW + 4, sent=True)])
    (second,) = jobs.take([Call(parse_callback(callback("next", job_name="two"), UPSTREAM), REPOSITORY, NOW + 10)])
    assert isinstance(second, Taken)
    assert second.row.queue_s == 6


def test_a_job_begins_within_its_time(jobs: Jobs) -> None:
    assert take(jobs, call(at=NOW + 999)) == ["in_progress"]
    assert take(jobs, call(at=NOW + 1001, job_name="late")) == [400]
    assert take(jobs, call("completed", at=NOW + 1001)) == ["completed"], "the end of one that has begun is taken"


def test_old_jobs_are_forgotten_once_they_have_ended(jobs: Jobs) -> None:
    take(jobs, call(), call("completed"), call(job_name="goes on"))
    assert jobs.forget(NOW + 10) == 0
    assert jobs.forget(NOW + 11) == 1
    (left,) = jobs.status()
    assert (left.in_progress, left.completed) == (1, 0)


def rows(database: RelayDatabase, step: str) -> list[JobRow]:
    """The rows of the forwards of a step to the results."""
    with database.read() as connection:
        one = sa.select(FORWARDS.c.row).where(FORWARDS.c.status == step, FORWARDS.c.destination == "results")
        return [JobRow(**json.loads(row)) for row in connection.scalars(one)]


def test_a_lost_job_is_ended_once_and_may_be_corrected(jobs: Jobs, database: RelayDatabase) -> None:
    take(jobs, call())
    assert jobs.overdue(NOW + 609, LEASE_S) == []
    (job,) = jobs.overdue(NOW + 610, LEASE_S)
    assert jobs.overdue(NOW + 611, LEASE_S) == [], "another server has it"
    assert jobs.end_lost(job, NOW + 612) is not None
    assert jobs.end_lost(job, NOW + 613) is None
    (row,) = rows(database, "completed")
    assert (row.status, row.conclusion, row.is_infrastructure, row.execution_s) == ("completed", "timed_out", True, 602)
    assert jobs.overdue(NOW + 9999, LEASE_S) == []
    late = call("completed", at=NOW + 700, conclusion="failure")
    assert take(jobs, call(at=NOW + 700), late, late) == ["known", "corrected", "known"]
    assert take(jobs, call("completed", at=NOW + 700)) == [400], "it is corrected once"
    (row,) = rows(database, "completed")
    assert (row.status, row.conclusion, row.is_infrastructure, row.execution_s) == ("completed", "failure", False, 690)
    assert forwards(database) == [(step, one) for step in ("in_progress", "completed") for one in ("check_run", "results")]


def test_a_downstream_with_many_lost_jobs_holds_up_no_other(jobs: Jobs) -> None:
    for number in range(4):
        at = NOW + 10 + 100 * number
        assert take(jobs, *(call(at=at, job_name=f"{number} {one}") for one in range(5))) == ["in_progress"] * 5
    assert take(jobs, call(at=NOW + 500, downstream=OTHER)) == ["in_progress"]
    found = jobs.overdue(NOW + 5000, LEASE_S, limit=10)
    assert [one.row.repository for one in found].count("c/d") == 1
    assert len(found) == 10
    assert len(jobs.overdue(NOW + 5000, LEASE_S, limit=20)) == 11


def test_an_end_that_comes_during_the_look_wins(jobs: Jobs, database: RelayDatabase) -> None:
    take(jobs, call())
    (job,) = jobs.overdue(NOW + 610, LEASE_S)
    assert take(jobs, call("completed", at=NOW + 611)) == ["completed"]
    assert jobs.end_lost(job, NOW + 612) is None
    jobs.look_later(job, NOW + 700)
    assert jobs.overdue(NOW + 9999, LEASE_S) == []
    assert [row.conclusion for row in rows(database, "completed")] == ["success"]


def test_the_look_of_a_killed_server_goes_to_another(jobs: Jobs) -> None:
    take(jobs, call())
    (lost,) = jobs.overdue(NOW + 610, LEASE_S)
    (job,) = jobs.overdue(NOW + 610 + LEASE_S, LEASE_S)
    assert jobs.end_lost(lost, NOW + 700) is None
    jobs.look_later(lost, NOW + 800)
    jobs.look_later(job, NOW + 900)
    assert jobs.overdue(NOW + 899, LEASE_S) == []
    assert [one.key for one in jobs.overdue(NOW + 900, LEASE_S)] == [job.key]


def test_a_report_makes_its_job(jobs: Jobs) -> None:
    nightly = Call(parse_callback(report(), UPSTREAM), OTHER, NOW)
    assert take(jobs, nightly, replace(nightly, at=NOW + 5)) == ["completed", "known"]
    assert jobs.overdue(NOW + 9999, LEASE_S) == []
