"""The messages that wait to be sent: quiet hours, digests, and tries again. Pure; `deliver.py` sends.

A message is in the outbox from the moment at which its trouble is remembered as told, in one file with that memory, until
each address of its route has taken it. Messages that are sent together are a post, whose id is kept before it is sent.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from accel_ci.config.notify_settings import QuietHours, Route, Severity
from accel_ci.notify.messages import Message

GIVEN_UP_AFTER = timedelta(days=3)
"""A message that no address takes is given up after so long."""

_LONGEST_WAIT = timedelta(hours=1)
_MOST_IN_A_POST = 20
"""A post lists so many messages in full, and counts the others: chats cut long texts."""

_ORDER: tuple[Severity, ...] = ("failure", "warning", "info")


@dataclass(frozen=True)
class Waiting:
    """A message that waits. `post` is the post that it belongs to, None before the first try; `done` are the addresses that
    have taken that post, each as a digest.
    """  # noqa: D205

    message: Message
    due_at: datetime
    post: str | None = None
    tries: int = 0
    done: tuple[str, ...] = ()


@dataclass(frozen=True)
class Post:
    """A text that is sent to the addresses of a route at once."""

    id: str
    route: str
    title: str
    text: str
    severity: Severity
    is_recovery: bool
    messages: tuple[str, ...]
    tries: int = 0
    done: tuple[str, ...] = ()


def put(outbox: Sequence[Waiting], messages: Iterable[Message], routes: Mapping[str, Route]) -> tuple[Waiting, ...]:
    """Add messages. One that a trouble is over takes the earlier ones on it along, if none of them was sent yet."""
    found = list(outbox)
    for message in messages:
        unsent = [
            each for each in found
            if each.post is None and (each.message.name, each.message.route) == (message.name, message.route)
        ]  # fmt: skip
        found = [each for each in found if each not in unsent]
        if message.change == "over" and any(each.message.change in ("new", "returned") for each in unsent):
            continue
        wait = timedelta(minutes=routes[message.route].digest_minutes)
        found.append(Waiting(message, message.made_at + wait))
    return tuple(found)


def due(outbox: Sequence[Waiting], routes: Mapping[str, Route], now: datetime) -> list[Post]:
    """Return the posts to send now: those that were tried before, and one new post for each route that may be disturbed."""
    groups: defaultdict[tuple[str, str | None], list[Waiting]] = defaultdict(list)
    for each in outbox:
        route = routes.get(each.message.route)
        if route is not None and not is_quiet(route.quiet, now):
            groups[each.message.route, each.post].append(each)
    return [
        _post(route, group)
        for (route, _), group in groups.items()
        if any(_is_due(each, routes[route], now) for each in group)
    ]  # fmt: skip


def _is_due(waiting: Waiting, route: Route, now: datetime) -> bool:
    """Return whether a message has waited. One that is due later than any can be comes of a clock that was ahead."""
    longest = max(_LONGEST_WAIT, timedelta(minutes=route.digest_minutes))
    return not now < waiting.due_at <= now + longest


def begin(outbox: Sequence[Waiting], post: Post) -> tuple[Waiting, ...]:
    """Note that a post is about to be sent."""
    return tuple(
        replace(each, post=post.id, tries=each.tries + 1) if each.message.id in post.messages else each for each in outbox
    )


def took(outbox: Sequence[Waiting], post: Post, address: str) -> tuple[Waiting, ...]:
    """Note that an address has taken a post."""
    return tuple(replace(each, done=(*each.done, address)) if each.post == post.id else each for each in outbox)


def end(outbox: Sequence[Waiting], post: Post) -> tuple[Waiting, ...]:
    """Remove the messages of a post that all addresses have taken."""
    return tuple(each for each in outbox if each.post != post.id)


def put_off(outbox: Sequence[Waiting], post: Post, now: datetime) -> tuple[Waiting, ...]:
    """Have a post tried again later: after a minute, then two, four and so on, at most an hour."""
    return tuple(
        replace(each, due_at=now + min(_LONGEST_WAIT, timedelta(minutes=2 ** min(each.tries - 1, 6))))
        if each.post == post.id
        else each
        for each in outbox
    )


def give_up(
    outbox: Sequence[Waiting], routes: Mapping[str, Route], now: datetime
) -> tuple[tuple[Waiting, ...], list[Message]]:
    """Part the messages that are too old, or whose route is gone, from the others."""
    kept = tuple(
        each for each in outbox
        if each.message.route in routes and (each.tries == 0 or now - each.message.made_at < GIVEN_UP_AFTER)
    )  # fmt: skip
    return kept, [each.message for each in outbox if each not in kept]


def is_quiet(hours: QuietHours | None, now: datetime) -> bool:
    """Return whether it is in the quiet hours."""
    if hours is None:
        return False
    at = now.astimezone(ZoneInfo(hours.zone)).time()
    if hours.begin <= hours.end:
        return hours.begin <= at < hours.end
    return at >= hours.begin or at < hours.end


def _post(route: str, group: Sequence[Waiting]) -> Post:
    ordered = sorted(group, key=lambda each: (_ORDER.index(each.message.severity), each.message.made_at, each.message.id))
    messages = [each.message for each in ordered]
    ids = tuple(message.id for message in messages)
    identity = group[0].post or hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:12]
    if len(messages) == 1:
        title, text = messages[0].title, messages[0].text
    else:
        title = f"{len(messages)} messages: {_counted(messages)}"
        parts = [f"{message.title}\n{message.text}" for message in messages[:_MOST_IN_A_POST]]
        parts += [f"and {len(messages) - _MOST_IN_A_POST} more"] if len(messages) > _MOST_IN_A_POST else []
        text = "\n\n".join(parts)
    tries = max(each.tries for each in group)
    again = "; this is another try, and the one before may have arrived" if tries else ""
    is_recovery = all(message.change == "over" for message in messages)
    return Post(
        identity, route, title, f"{text}\n\nMessage {identity}{again}", messages[0].severity, is_recovery, ids, tries,
        group[0].done,
    )  # fmt: skip


def _counted(messages: Sequence[Message]) -> str:
    counts: defaultdict[str, int] = defaultdict(int)
    for message in messages:
        counts[message.change] += 1
    return ", ".join(f"{count} {change}" for change, count in counts.items())
