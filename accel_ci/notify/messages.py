"""Decide what is told to whom: from the troubles of now and the memory of what was told to new messages. Pure.

A trouble is told once when it begins, once when it ends, once when it returns, and once when its cause turns out to be
another whose owners have another route. When a message is sent is the question of `outbox.py`.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Literal, get_args

from accel_ci.config.notify_settings import Route, Severity, TroubleCause
from accel_ci.notify.troubles import Trouble

Change = Literal["new", "returned", "other cause", "over"]
"""The state that a trouble has gone into."""

FORGOTTEN_AFTER = timedelta(days=90)
"""A trouble that is over is remembered for so long, to be known when it returns."""

_SEVERITIES: tuple[Severity, ...] = get_args(Severity)
_MOST_CHARACTERS = 300


@dataclass(frozen=True)
class Told:
    """The last that was told about a trouble. `name` stays the same when the id of the trouble changes.

    `number` counts the changes that were told: it is 0 if no route has taken the trouble yet.
    """

    name: str
    id: str
    is_open: bool
    cause: TroubleCause
    title: str
    routes: tuple[str, ...]
    number: int
    at: datetime
    marks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Message:
    """A message to one route. Its id comes from the trouble and the number of its change: the same, if made again."""

    id: str
    name: str
    route: str
    change: Change
    severity: Severity
    title: str
    text: str
    made_at: datetime


Memory = Mapping[str, Told]
"""The last that was told of each trouble, by its name."""


def recognise(troubles: Sequence[Trouble], memory: Memory) -> dict[str, Trouble]:
    """Return the troubles by the names that they are remembered under: that of the same id, else of one that shares a mark.

    Of those remembered, only one that no trouble has by its id can be recognised by a mark. A new trouble is named by its
    id. An incident that is remembered and is no more counts as over: a judgement that knows more has joined its failures to
    others.
    """
    by_id = {told.id: name for name, told in memory.items()}
    taken = {by_id[trouble.id] for trouble in troubles if trouble.id in by_id}
    by_mark: defaultdict[str, list[str]] = defaultdict(list)
    for name, told in memory.items():
        if name not in taken:
            for mark in told.marks:
                by_mark[mark].append(name)
    found = {}
    for trouble in troubles:
        if trouble.id in by_id:
            found[by_id[trouble.id]] = trouble
            continue
        known = {each for mark in trouble.marks for each in by_mark[mark]} - taken
        new = trouble.id
        if new in memory:  # the name of an earlier one that has another id now
            new = f"{new}-{memory[new].number + 1}"
        name = max(known, key=lambda each: (memory[each].is_open, memory[each].at, each), default=new)
        taken.add(name)
        found[name] = trouble
    if any(trouble.id.startswith("incident-") for trouble in troubles):  # else nothing was judged, and nothing is known
        for name, told in memory.items():
            if told.id.startswith("incident-") and name not in found:
                words = "Its failures belong to another incident, or are too old."
                found[name] = Trouble(told.id, False, told.cause, told.title, words)
    return found


def route_of(trouble: Trouble, routes: Mapping[str, Route]) -> str | None:
    """Return the first route that matches a trouble; None where there is none, or the trouble is too small for it."""
    for name, route in routes.items():
        owned = not route.owners or any(fnmatchcase(trouble.owner or "", pattern) for pattern in route.owners)
        if trouble.cause in route.causes and owned:
            is_large = not trouble.tests or trouble.tests >= route.least_tests
            is_bad = _SEVERITIES.index(trouble.severity) >= _SEVERITIES.index(route.least_severity)
            return name if is_large and is_bad else None
    return None


def tell(
    named: Mapping[str, Trouble], memory: Memory, routes: Mapping[str, Route], now: datetime
) -> tuple[list[Message], dict[str, Told]]:
    """Return the messages on what has changed since the last time, and the memory that includes them.

    `named` are the troubles of now by name (`recognise`).
    """
    messages, after = list[Message](), dict(memory)
    for name, trouble in named.items():
        told = memory.get(name)
        if told is None:
            if not trouble.is_open:
                continue
            told = Told(name, trouble.id, True, trouble.cause, trouble.title, (), 0, now, trouble.marks)
        told = replace(told, id=trouble.id, marks=trouble.marks or told.marks)
        if (found := _change(trouble, told, routes)) is not None:
            change, to = found
            number, cause = told.number + 1, told.cause if change == "over" else trouble.cause
            messages += [_message(name, trouble, change, told, route, number, now) for route in to]
            told = Told(name, trouble.id, trouble.is_open, cause, trouble.title, to[:1], number, now, told.marks)
        elif told.number == 0 and told.is_open != trouble.is_open:
            told = replace(told, is_open=trouble.is_open, at=now)
        elif trouble.is_open and route_of(trouble, routes) in told.routes:
            told = replace(told, cause=trouble.cause)
        after[name] = told
    return messages, {name: told for name, told in after.items() if told.is_open or now - told.at < FORGOTTEN_AFTER}


def plain(text: str, most: int = _MOST_CHARACTERS) -> str:
    """A hostile text as one line that can call nobody: no control characters, no mentions, no links of chats."""
    visible = "".join(" " if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") else letter for letter in text)
    line = " ".join(visible.split())
    line = line if len(line) <= most else f"{line[: most - 1]}…"
    return line.replace("@", "@\u200b").replace("<", "‹").replace(">", "›").replace("](", "] (").replace("`", "'")


def _change(trouble: Trouble, told: Told, routes: Mapping[str, Route]) -> tuple[Change, tuple[str, ...]] | None:
    """Return the change that is to be told, and the routes; None if there is nothing to tell."""
    if told.number and told.is_open and not trouble.is_open:
        return "over", tuple(route for route in told.routes if route in routes)
    if not trouble.is_open or (route := route_of(trouble, routes)) is None:
        return None
    if not told.number:
        return "new", (route,)
    if not told.is_open:
        return "returned", (route,)
    if told.cause != trouble.cause and route not in told.routes:  # those who were told first learn that it is not theirs
        return "other cause", (route, *(each for each in told.routes if each in routes))
    return None


def _message(name: str, trouble: Trouble, change: Change, told: Told, route: str, number: int, now: datetime) -> Message:
    words = {"new": "", "returned": "again: ", "other cause": f"{trouble.cause}, not {told.cause}: "}
    begin = "over: " if change == "over" else words[change]
    count = f" ({trouble.tests} tests)" if trouble.tests > 1 and change != "over" else ""
    title = f"[{trouble.cause}] {begin}{plain(trouble.title, 120)}{count}"
    identity = hashlib.sha256(f"{name}\n{number}\n{route}".encode()).hexdigest()[:12]
    return Message(identity, name, route, change, trouble.severity, title, "\n".join(_lines(trouble, change)), now)


def _lines(trouble: Trouble, change: Change) -> Iterable[str]:
    yield plain(trouble.sentence)
    if change == "over" and trouble.last:
        yield f"Last seen in {plain(trouble.last)}."
    elif trouble.since:
        seen = f", seen in {plain(trouble.last)}" if trouble.last and trouble.last != trouble.since else ""
        yield f"Since {plain(trouble.since)}{seen}."
    if trouble.owner and change != "over":
        yield f"Owner: {plain(trouble.owner)}"
    if trouble.link:
        yield trouble.link
    if trouble.command and change != "over":
        yield f"Reproduce: {trouble.command}"
