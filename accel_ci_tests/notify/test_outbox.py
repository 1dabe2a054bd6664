"""Messages wait for the end of quiet hours and for others, and are sent together."""

from __future__ import annotations

from datetime import datetime, time, timedelta, timezone

import pytest

from accel_ci.config.notify_settings import QuietHours, Route
from accel_ci.notify.messages import Change, Message
from accel_ci.notify.outbox import GIVEN_UP_AFTER, begin, due, end, give_up, is_quiet, put, put_off

NOW = datetime(2026, 11, 27, 22, tzinfo=timezone.utc)
NIGHT = QuietHours(begin=time(20), end=time(7), zone="UTC")
ROUTES = {
    "now": Route(urls_from="A"),
    "quiet": Route(urls_from="B", quiet=NIGHT),
    "hourly": Route(urls_from="C", digest_minutes=60),
}


def message(name: str, route: str = "now", change: Change = "new", at: datetime = NOW) -> Message:
    """A message on a trouble."""
    return Message(f"{name}-{change}-{route}", name, route, change, "failure", f"title of {name}", "text", at)


def test_what_becomes_known_at_once_is_one_post() -> None:
    outbox = put((), [message(f"m{number}") for number in range(30)], ROUTES)
    [post] = due(outbox, ROUTES, NOW)
    assert post.title == "30 messages: 30 new"
    assert "and 10 more" in post.text
    assert end(begin(outbox, post), post) == ()


def test_a_digest_waits_for_others() -> None:
    outbox = put((), [message("a", "hourly")], ROUTES)
    assert due(outbox, ROUTES, NOW + timedelta(minutes=59)) == []
    later = NOW + timedelta(minutes=30)
    outbox = put(outbox, [message("b", "hourly", at=later)], ROUTES)
    [post] = due(outbox, ROUTES, NOW + timedelta(minutes=60))
    assert len(post.messages) == 2


def test_a_message_out_of_the_future_is_sent() -> None:
    """The clock was ahead, and was put back."""
    ahead = NOW + timedelta(days=300)
    outbox = put((), [message("a", "hourly", at=ahead)], ROUTES)
    [post] = due(outbox, ROUTES, NOW)
    tried = put_off(begin(outbox, post), post, ahead)
    assert [each.id for each in due(tried, ROUTES, NOW)] == [post.id]


def test_quiet_hours_end_with_one_post() -> None:
    outbox = put((), [message("a", "quiet"), message("b", "quiet")], ROUTES)
    assert due(outbox, ROUTES, NOW) == []
    [post] = due(outbox, ROUTES, NOW + timedelta(hours=9))
    assert len(post.messages) == 2


def test_a_trouble_that_begins_and_ends_unheard_is_not_told() -> None:
    outbox = put((), [message("a", "quiet"), message("b", "quiet")], ROUTES)
    outbox = put(outbox, [message("a", "quiet", "over")], ROUTES)
    assert [each.message.name for each in outbox] == ["b"]


def test_the_end_of_a_trouble_whose_begin_was_sent_is_told() -> None:
    outbox = put((), [message("a")], ROUTES)
    [post] = due(outbox, ROUTES, NOW)
    outbox = put(begin(outbox, post), [message("a", change="over")], ROUTES)
    assert [each.message.change for each in outbox] == ["new", "over"]


def test_a_post_keeps_its_id_and_its_messages_when_it_is_tried_again() -> None:
    outbox = put((), [message("a")], ROUTES)
    [first] = due(outbox, ROUTES, NOW)
    outbox = put(put_off(begin(outbox, first), first, NOW), [message("b")], ROUTES)
    assert [post.messages for post in due(outbox, ROUTES, NOW)] == [("b-new-now",)]
    again = due(outbox, ROUTES, NOW + timedelta(minutes=1))[0]
    assert (again.id, again.messages, again.tries) == (first.id, first.messages, 1)


def test_tries_come_at_growing_intervals_until_the_message_is_given_up() -> None:
    outbox, now, waits = put((), [message("a")], ROUTES), NOW, []
    while True:
        outbox, lost = give_up(outbox, ROUTES, now)
        if lost:
            break
        [post] = due(outbox, ROUTES, now)
        outbox = put_off(begin(outbox, post), post, now)
        waits.append(outbox[0].due_at - now)
        now = outbox[0].due_at
    assert [wait.total_seconds() / 60 for wait in waits[:8]] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert now - NOW >= GIVEN_UP_AFTER


def test_messages_of_a_route_that_is_gone_are_given_up() -> None:
    kept, lost = give_up(put((), [message("a"), message("b", "hourly")], ROUTES), {"now": ROUTES["now"]}, NOW)
    assert ([each.message.name for each in kept], [each.name for each in lost]) == (["a"], ["b"])


@pytest.mark.parametrize(
    ("zone", "hour", "expected"),
    [("UTC", 6, True), ("UTC", 7, False), ("Europe/Berlin", 6, False), ("Europe/Berlin", 19, True)],
)
def test_quiet_hours_are_those_of_the_time_zone(zone: str, hour: int, expected: bool) -> None:
    hours = QuietHours(begin=time(20), end=time(7), zone=zone)
    assert is_quiet(hours, NOW.replace(hour=hour)) is expected


def test_quiet_hours_may_be_within_a_day() -> None:
    hours = QuietHours(begin=time(12), end=time(13))
    assert [is_quiet(hours, NOW.replace(hour=hour)) for hour in (11, 12, 13)] == [False, True, False]
