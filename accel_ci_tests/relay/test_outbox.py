"""The outbox's transactions, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from accel_ci.github.answers import Failed
from accel_ci.relay.rows import JobRow
from accel_ci.relay.server.database import RelayDatabase
from accel_ci.relay.server.fan_out import settlement_of
from accel_ci.relay.server.outbox import (
    FORWARDS,
    LARGEST_BATCH,
    Destination,
    Forward,
    ForwardClaim,
    ForwardEnd,
    Outbox,
    enqueue,
)
from accel_ci.relay.server.queue import Queue, Settlement
from accel_ci.relay.server.settings import ForwardSettings
from accel_ci_tests.fixtures.postgres import POSTGRES, empty_postgres
from accel_ci_tests.fixtures.relay_rows import NOW, begun, ended

LEASE_S = 60.0


@dataclass
class Box:
    """An outbox and its database."""

    url: str
    database: RelayDatabase
    outbox: Outbox

    def put(self, *rows: JobRow, to: Destination = "results", at: float = NOW) -> None:
        with self.database.write() as connection:
            enqueue(self.database, connection, [Forward(to, row) for row in rows], at)

    def claim(self, to: Destination = "results", at: float = NOW, limit: int = 10) -> list[ForwardClaim]:
        return self.outbox.claim(to, limit, at, LEASE_S)

    def settle(self, claim: ForwardClaim, reference: str | None = None, **end: Any) -> None:
        self.outbox.settle([ForwardEnd(Settlement(claim, NOW, **end), reference)])

    def counts(self, to: Destination = "results") -> tuple[int, int, int]:
        """Waiting, sent and dead."""
        return next((one.waiting, one.sent, one.dead) for one in self.outbox.status(NOW) if one.destination == to)


@pytest.fixture(params=["sqlite", "postgresql"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Box]:
    """An empty outbox."""
    if request.param == "sqlite":
        urls = iter([f"sqlite:///{tmp_path / 'relay.sqlite'}"])
    elif POSTGRES is None:
        pytest.skip("no PostgreSQL: ACCEL_CI_POSTGRES_URL not set")
    else:
        urls = empty_postgres()
    url = next(urls)
    database = RelayDatabase(url)
    yield Box(url, database, Outbox(database))
    database.close()
    list(urls)


def test_rows_come_back_whole(box: Box) -> None:
    row = ended(failed_tests='[{"name": "t\ud83d 😀", "message": "a\\nb"}]', job_name="ünï \x07", pull_request=None)
    box.put(row)
    (claim,) = box.claim()
    assert claim.row == row


def test_the_end_waits_for_its_beginning(box: Box) -> None:
    box.put(begun(), ended())
    box.put(ended(), to="check_run")
    (first,) = box.claim()
    assert first.row.status == "in_progress"
    assert box.claim() == [], "while the beginning is under way"
    box.settle(first, failed=True, due_at=NOW + 5, error="HTTP 500")
    assert box.claim() == [], "while it waits for another try"
    assert [claim.row.status for claim in box.claim("check_run")] == ["completed"], "destinations do not wait for each other"
    (again,) = box.claim(at=NOW + 5)
    assert (again.row.status, again.number, again.failures) == ("in_progress", 2, 1)
    box.settle(again, sent=True)
    assert [claim.row.status for claim in box.claim()] == ["completed"]


def test_a_dead_beginning_does_not_hold_up_the_end_and_does_not_follow_it(box: Box) -> None:
    box.put(begun(), ended())
    (first,) = box.claim()
    box.settle(first, error="HTTP 422")
    (last,) = box.claim()
    assert last.row.status == "completed"
    assert box.outbox.replay(NOW) == 0, "its end is under way"
    box.settle(last, sent=True)
    assert box.counts() == (0, 2, 0)
    assert box.outbox.replay(NOW) == 0


def test_a_claim_is_for_one_worker_until_its_lease_ends(box: Box) -> None:
    box.put(begun(), begun(job_name="other"))
    (slow,) = box.claim(limit=1)
    assert len(box.claim()) == 1
    assert box.claim(at=NOW + LEASE_S - 1) == []
    fast = next(claim for claim in box.claim(at=NOW + LEASE_S) if claim.key == slow.key)
    box.settle(slow, error="late")
    assert box.counts() == (2, 0, 0), "the failure of a lost claim is dropped"
    box.settle(fast, sent=True)
    assert box.counts() == (1, 1, 0)


def test_what_a_clock_that_was_ahead_has_put_off_is_due_again(box: Box) -> None:
    box.put(begun())
    assert len(box.claim(at=NOW + 86_400)) == 1
    assert box.claim(at=NOW) == []
    assert box.outbox.hasten(NOW, NOW + 3600) == 1
    assert len(box.claim(at=NOW)) == 1


def test_the_same_row_adds_nothing_and_a_corrected_one_is_sent_again(box: Box) -> None:
    box.put(ended(conclusion="timed_out"))
    (claim,) = box.claim()
    box.settle(claim, reference="77", sent=True)
    box.put(ended(conclusion="timed_out"), at=NOW + 1)
    assert box.claim(at=NOW + 1) == []
    box.put(ended(conclusion="success"), at=NOW + 2)
    (corrected,) = box.claim(at=NOW + 2)
    assert (corrected.row.conclusion, corrected.reference) == ("success", "77")
    box.put(ended(conclusion="failure"), at=NOW + 3)
    box.settle(corrected, sent=True)
    (last,) = box.claim(at=NOW + 3)
    assert last.row.conclusion == "failure", "what was under way at a correction does not count"


def test_the_end_knows_the_name_that_the_beginning_got(box: Box) -> None:
    box.put(begun(), ended(), to="check_run")
    (first,) = box.claim("check_run")
    assert first.reference is None
    box.settle(first, reference="123", sent=True)
    (last,) = box.claim("check_run")
    assert last.reference == "123"


def test_what_was_sent_goes_on_to_the_next_destination(box: Box) -> None:
    box.put(begun(), begun(job_name="other"))
    first, second = box.claim()
    box.outbox.settle(
        [ForwardEnd(Settlement(first, NOW, sent=True)), ForwardEnd(Settlement(second, NOW, failed=True, due_at=NOW))],
        ["clickhouse"],
    )
    assert [claim.row for claim in box.claim("clickhouse")] == [first.row]


def test_a_rate_limit_holds_for_dispatches_and_check_runs_alone(box: Box) -> None:
    box.put(begun(), to="check_run")
    box.put(begun())
    (claim,) = box.claim("check_run")
    box.settle(claim, due_at=NOW + 1, error="HTTP 429", github_paused_until=NOW + 60)
    assert box.claim("check_run", at=NOW + 59) == []
    assert len(box.claim()) == 1
    assert Queue(box.database).status(NOW)[0].paused_s == 60
    (again,) = box.claim("check_run", at=NOW + 60)
    assert again.failures == 0


def test_dead_letters_and_replay(box: Box) -> None:
    rows = [begun(), ended(), begun(delivery_id="d-2", repository="Org/Other"), begun(delivery_id="d-3")]
    box.put(*rows)
    assert box.outbox.give_up(NOW) == 0
    assert box.outbox.give_up(NOW + 1) == 4
    (status,) = box.outbox.status(NOW)
    assert (status.waiting, status.dead, status.error) == (0, 4, "waited too long")
    assert box.outbox.replay(NOW + 5, repository="org/other") == 1
    assert box.outbox.replay(NOW + 5, delivery="none") == 0
    assert box.outbox.replay(NOW + 5, delivery="d-1") == 2
    assert {claim.row.status for claim in box.claim(at=NOW + 5)} == {"in_progress"}, "order holds for what is replayed"
    assert box.outbox.replay(NOW + 5) == 1


def test_what_was_sent_is_forgotten_and_dead_letters_stay(box: Box) -> None:
    box.put(*(begun(job_name=name) for name in ("sent", "dead", "waits")))
    for claim in box.claim():
        if claim.row.job_name == "sent":
            box.settle(claim, sent=True)
        if claim.row.job_name == "dead":
            box.settle(claim, error="HTTP 422")
    assert box.outbox.forget(NOW) == 0
    assert box.outbox.forget(NOW + 1) == 1
    assert box.counts() == (1, 0, 1)


def test_workers_share_the_forwards(box: Box) -> None:
    rows = [row for number in range(30) for row in (begun(job_name=f"j{number}"), ended(job_name=f"j{number}"))]
    box.put(*rows)
    found: list[tuple[str, str]] = []

    def work() -> None:
        database = RelayDatabase(box.url)
        mine = Outbox(database)
        while mine.status(NOW)[0].waiting:
            claims = mine.claim("results", 3, NOW, LEASE_S)
            found.extend((claim.row.job_name, claim.row.status) for claim in claims)
            mine.settle([ForwardEnd(Settlement(claim, NOW, sent=True)) for claim in claims])
        database.close()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(found) == sorted((row.job_name, row.status) for row in rows)
    assert all(found.index((f"j{number}", "in_progress")) < found.index((f"j{number}", "completed")) for number in range(30))
    assert box.counts() == (0, 60, 0)


def test_a_forward_is_of_the_callers_transaction(box: Box) -> None:
    with suppress(ZeroDivisionError), box.database.write() as connection:
        enqueue(box.database, connection, [Forward("results", begun())], NOW)
        _ = 1 / 0
    assert box.claim() == []
    box.put(replace(begun(), status="completed"))
    assert len(box.claim()) == 1


def _store(box: Box, job_name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a stored row, as another version or a damage would."""
    with box.database.write() as connection:
        for one in connection.execute(sa.select(FORWARDS.c.job, FORWARDS.c.row)).all():
            document = json.loads(one.row)
            if document["job_name"] == job_name:
                change(document)
                changed = sa.update(FORWARDS).where(FORWARDS.c.job == one.job)
                connection.execute(changed.values(row=json.dumps(document).encode()))


def test_a_row_that_cannot_be_read_holds_up_no_other(box: Box) -> None:
    box.put(ended(job_name="damaged"), ended(job_name="newer"), ended(job_name="good"))
    _store(box, "damaged", lambda row: row.pop("repository"))
    _store(box, "newer", lambda row: row.update(column_of_a_later_version=1))
    assert {claim.row.job_name for claim in box.claim()} == {"newer", "good"}
    assert box.counts() == (2, 0, 1)
    (status,) = box.outbox.status(NOW)
    assert status.error is not None
    assert "cannot be read" in status.error


def test_what_was_sent_is_kept_without_its_failed_tests(box: Box) -> None:
    """Two weeks of rows with 2 MB of failed tests, of every destination, would fill the disk of the database."""
    row = ended(failed_tests=json.dumps([{"name": "x" * 10_000}]))
    box.put(row)
    (claim,) = box.claim()
    assert claim.row == row
    box.outbox.settle([ForwardEnd(Settlement(claim, NOW, sent=True))], ["clickhouse"])
    (onward,) = box.claim("clickhouse")
    assert onward.row == row, "the next destination gets all of it"
    box.settle(onward, sent=True)
    with box.database.read() as connection:
        assert max(len(content) for content in connection.scalars(sa.select(FORWARDS.c.row))) < 5000
    assert box.claim(at=NOW + 1) == []


def test_a_claim_has_a_bounded_size(box: Box) -> None:
    """After an outage, hundreds of rows of 2 MB wait: read together, they would take gigabytes."""
    each = LARGEST_BATCH // 3
    for name in ("one", "two", "three", "four"):
        box.put(ended(job_name=name, failed_tests="x" * each))
    sizes = [len(box.claim()) for _ in range(3)]
    assert sizes == [3, 1, 0]


def test_the_reason_of_a_failure_may_have_any_characters(box: Box) -> None:
    """PostgreSQL refuses NUL, and SQLite halves of characters: the end of the try would be lost, again and again."""
    box.put(ended())
    (claim,) = box.claim()
    answer = Failed("a server wrote \x00 and \ud800 and \x1b[2J")
    end = settlement_of(claim, answer, ForwardSettings(), NOW, 0, 0.0)
    box.outbox.settle([ForwardEnd(end)])
    (status,) = box.outbox.status(NOW)
    assert (status.waiting, status.error) == (1, "a server wrote   and   and  [2J")
