"""The queue's transactions, on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from accel_ci.errors import AccelCiError
from accel_ci.relay.server.database import RelayDatabase
from accel_ci.relay.server.queue import GITHUB, Claim, Queue, Settlement
from accel_ci.relay.server.webhook import Delivery

NOW, LEASE_S = 1_800_000_000.0, 60.0


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    """An empty queue."""
    database = RelayDatabase(url)
    yield Queue(database)
    database.close()


def fill(queue: Queue, *deliveries: str, at: float = NOW, to: tuple[str, ...] = ("a/b",)) -> None:
    queue.store([(Delivery(name, "push", None, b"{}"), at) for name in deliveries])
    queue.expand(lambda event, device: list(to), at)


def claimed(queue: Queue, at: float = NOW, limit: int = 10, repository: str = "a/b") -> list[Claim]:
    (found,) = queue.claim([(repository, limit)], at, LEASE_S)
    return found


def sent(claim: Claim, at: float = NOW) -> Settlement[Claim]:
    return Settlement(claim, at, sent=True)


def test_a_redelivery_adds_nothing(queue: Queue) -> None:
    one = Delivery("one", "push", None, b"first")
    queue.store([(one, NOW), (Delivery("one", "push", None, b"other"), NOW)])
    queue.expand(lambda event, device: ["a/b"], NOW)
    queue.store([(one, NOW + 1)])
    assert queue.expand(lambda event, device: ["a/b", "c/d"], NOW + 1) == 0
    assert [claim.body for claim in claimed(queue)] == [b"first"]
    assert claimed(queue, repository="c/d") == []


def test_recipients_get_event_and_device(queue: Queue) -> None:
    asked = []
    queue.store([(Delivery("one", "pull_request", "emu", b""), NOW)])
    assert queue.expand(lambda event, device: asked.append((event, device)) or [], NOW) == 1  # type: ignore[func-returns-value]
    assert asked == [("pull_request", "emu")]
    assert queue.unexpanded() == 0


def test_a_claim_is_for_one_worker_until_its_lease_ends(queue: Queue) -> None:
    fill(queue, "one", "two")
    (first,) = claimed(queue, limit=1)
    (second,) = claimed(queue)
    assert {first.delivery, second.delivery} == {"one", "two"}
    assert claimed(queue, NOW + LEASE_S - 1) == []
    again = claimed(queue, NOW + LEASE_S)
    assert [claim.number for claim in again] == [2, 2]


def test_the_end_of_a_claim_that_another_worker_has(queue: Queue) -> None:
    fill(queue, "one")
    (slow,) = claimed(queue)
    (fast,) = claimed(queue, NOW + LEASE_S)
    queue.settle([Settlement(slow, NOW, failed=True, due_at=None, error="late")])
    assert queue.status(NOW)[0].waiting == 1, "the failure of a lost claim is dropped"
    queue.settle([sent(slow)])
    queue.settle([Settlement(fast, NOW, failed=True, due_at=NOW, error="late")])
    assert (queue.status(NOW)[0].sent, queue.status(NOW)[0].waiting) == (1, 0), "what was sent stays sent"
    assert claimed(queue, NOW + 10 * LEASE_S) == []


def test_breaker_and_pauses(queue: Queue) -> None:
    fill(queue, "one", to=("a/b", "c/d"))
    assert queue.due_downstreams(NOW) == {"a/b": 0, "c/d": 0}
    (claim,) = claimed(queue)
    queue.settle([Settlement(claim, NOW, failed=True, due_at=NOW + 1, error="HTTP 500", paused_until=NOW + 30)])
    assert queue.due_downstreams(NOW + 29) == {"c/d": 0}
    assert queue.due_downstreams(NOW + 30) == {"a/b": 1, "c/d": 0}
    (claim,) = claimed(queue, NOW + 30)
    assert claim.failures == 1
    queue.settle([sent(claim, NOW + 31)])
    assert queue.status(NOW + 31)[0].failures == 0

    (claim,) = claimed(queue, repository="c/d")
    queue.settle([Settlement(claim, NOW, due_at=NOW + 61, error="HTTP 429", github_paused_until=NOW + 60)])
    assert queue.due_downstreams(NOW + 59) == {}
    assert [(one.repository, one.paused_s) for one in queue.status(NOW + 50)] == [(GITHUB, 10), ("a/b", 0), ("c/d", 0)]
    assert queue.due_downstreams(NOW + 61) == {"c/d": 0}


def test_a_shorter_rate_limit_does_not_end_a_longer_one(queue: Queue) -> None:
    """Requests that were under way together: the hour is used up, and the other answer names no time."""
    fill(queue, "one", "two")
    for claim, seconds in zip(claimed(queue), (3600, 60), strict=True):
        queue.settle([Settlement(claim, NOW, due_at=NOW + seconds, github_paused_until=NOW + seconds)])
    assert queue.due_downstreams(NOW + 3599) == {}
    assert queue.due_downstreams(NOW + 3600) == {"a/b": 0}


def test_what_a_clock_that_was_ahead_has_put_off(queue: Queue) -> None:
    ahead = NOW + 86_400
    fill(queue, "one", "two", at=ahead)
    one, _ = claimed(queue, ahead)
    queue.settle([Settlement(one, ahead, failed=True, due_at=ahead + 9, paused_until=ahead, github_paused_until=ahead + 60)])
    assert queue.due_downstreams(NOW) == {}
    assert (queue.hasten(NOW, ahead + 100), queue.due_downstreams(NOW)) == (0, {}), "not so far ahead"
    assert queue.hasten(NOW, NOW + 3600) == 2
    assert queue.due_downstreams(NOW) == {"a/b": 1}
    assert {claim.delivery for claim in claimed(queue)} == {"one", "two"}
    assert queue.hasten(NOW, NOW + 3600) == 0


def test_dead_letters_and_replay(queue: Queue) -> None:
    fill(queue, "one", "two", to=("a/b", "c/d"))
    for claim in claimed(queue):
        queue.settle([Settlement(claim, NOW, failed=True, due_at=None, error="HTTP 500", paused_until=NOW + 900)])
    assert queue.give_up(NOW) == 0
    assert queue.give_up(NOW + 1) == 2
    assert [(one.dead, one.error) for one in queue.status(NOW)] == [(2, "HTTP 500"), (2, "waited too long")]
    assert queue.replay(NOW + 5, delivery="one", repository="A/B") == 1
    assert queue.due_downstreams(NOW + 5) == {"a/b": 0}
    assert queue.replay(NOW + 5, delivery="none") == 0
    assert queue.replay(NOW + 5) == 3
    (claim, _) = claimed(queue, NOW + 5)
    assert (claim.failures, claim.queued_at) == (0, NOW + 5)


def test_old_deliveries_go_and_dead_letters_stay(queue: Queue) -> None:
    fill(queue, "sent", "dead", "waits")
    fill(queue, "new", at=NOW + 100)
    for claim in claimed(queue, NOW + 100):
        if claim.delivery in ("sent", "new"):
            queue.settle([sent(claim)])
        elif claim.delivery == "dead":
            queue.settle([Settlement(claim, NOW, failed=True, error="HTTP 500")])
    assert queue.forget(NOW + 50) == 1
    (status,) = queue.status(NOW)
    assert (status.sent, status.dead, status.waiting) == (1, 1, 1)


def test_workers_share_the_dispatches(url: str, queue: Queue) -> None:
    """Servers of their own, as several replicas, expand and claim at once: each dispatch goes to one."""
    queue.store([(Delivery(f"d{number}", "push", None, b"{}"), NOW) for number in range(40)])
    found: list[tuple[str, str]] = []

    def work() -> None:
        database = RelayDatabase(url)
        mine = Queue(database)
        while mine.expand(lambda event, device: ["a/b", "c/d"], NOW, limit=5):
            pass
        for _ in range(30):
            claims = [claim for some in mine.claim([("a/b", 3), ("c/d", 3)], NOW, LEASE_S) for claim in some]
            found.extend((claim.delivery, claim.repository) for claim in claims)
            mine.settle([sent(claim) for claim in claims])
        database.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(found) == sorted((f"d{number}", repository) for number in range(40) for repository in ("a/b", "c/d"))
    assert [(one.sent, one.waiting) for one in queue.status(NOW)] == [(40, 0), (40, 0)]


@pytest.mark.parametrize(
    "address",
    [
        "nonsense",
        "mysql://localhost/x",
        "postgresql://u:pass-word-1@127.0.0.1:9/x",
        "postgresql://u:x@y:pass-word-1/x",
        "postgresql+asyncpg://u:pass-word-1@127.0.0.1/x",
        "sqlite:////proc/x/y",
    ],
)
def test_databases_that_cannot_be_used(address: str) -> None:
    with pytest.raises(AccelCiError) as raised:
        RelayDatabase(address)
    assert "pass-word-1" not in str(raised.value)
