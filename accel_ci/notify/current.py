"""Tell what has changed in a project since the last time: gather troubles, remember what is told, send what is due.

    quality/notified.json                what was told, and the messages that wait

A kill at any moment loses no message: memory and outbox are one file, written before anything is sent. It can double one
message alone, if it comes between the answer of a service and the note of it. That one has the same id again, and tells so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from filelock import FileLock

from accel_ci.config.extras import require_extra
from accel_ci.config.notify_settings import Notify, Route
from accel_ci.errors import AccelCiError, ConfigError
from accel_ci.github.answers import is_paused
from accel_ci.model import Ledger
from accel_ci.notify import outbox
from accel_ci.notify.addresses import addresses_of, shown_address
from accel_ci.notify.deliver import address_digest, send
from accel_ci.notify.issues import plan_steps, read_issues, take_steps
from accel_ci.notify.messages import Message, Told, recognise, tell
from accel_ci.notify.silence import Nightly, nightly_troubles, outage_troubles
from accel_ci.notify.troubles import Trouble, troubles_of
from accel_ci.pipelines import LEDGER
from accel_ci.quality.judgement import read_incidents
from accel_ci.quality.report import jobs_until
from accel_ci.workspace import Workspace

NOTIFIED = "notified"
"""The manifest of what was told."""

_LONGEST_S = 30.0
"""After so long, no further post is sent in a pass: Dagster allows a tick 60 seconds."""

_BEFORE_ISSUES_S = 300.0
"""The wait before GitHub is asked again after an error."""

_NIGHTS = timedelta(days=7)
"""Nightlies of so many days are looked at for silence."""


@dataclass(frozen=True)
class Notified:
    """The memory of what was told, and the messages that wait.

    `issues` is the digest of what GitHub's issues were made of; none are asked for before `issues_after`.
    """

    told: dict[str, Told] = field(default_factory=dict)
    waiting: tuple[outbox.Waiting, ...] = ()
    issues: str | None = None
    issues_after: datetime | None = None


@dataclass(frozen=True)
class Pass:
    """The work of a pass: new messages, the posts that were taken, what went wrong, and what was done to issues.

    `waiting` is the number of messages that are still to be sent.
    """

    messages: tuple[Message, ...] = ()
    sent: tuple[outbox.Post, ...] = ()
    faults: tuple[str, ...] = ()
    issues: tuple[str, ...] = ()
    waiting: int = 0

    @property
    def has_failed(self) -> bool:
        """True if something went wrong and nothing went out."""
        return bool(self.faults) and not (self.sent or self.issues)


def notify_settings(workspace: Workspace) -> Notify:
    """Return the section `notify`. Raises `ConfigError` if the project has none."""
    found = workspace.project.settings.notify
    if found is None:
        raise ConfigError("the configuration has no section 'notify'; docs/notify.md describes it")
    return found


def current_troubles(
    workspace: Workspace, now: datetime, scheduled: Sequence[datetime] = (), failed: Sequence[str] = ()
) -> list[Trouble]:
    """Return the troubles that the manifests show: incidents, and silences of the nightly.

    `scheduled` are the last times of the nightly's schedule, none if it is off, `failed` the builds whose run failed.
    """
    settings, hud = notify_settings(workspace), hud_of(workspace)
    found = troubles_of(read_incidents(workspace), settings.settled, hud)
    nightly = nightly_troubles(scheduled, recent_nightlies(workspace, now), settings.silence, now, failed, hud)
    missed = max(scheduled, default=None) if any(each.is_open for each in nightly) else None
    return [*found, *nightly, *outage_troubles(jobs_until(workspace, now), missed, settings.silence, now, hud)]


def hud_of(workspace: Workspace) -> str | None:
    """The address of the HUD, if somebody serves it."""
    return workspace.addresses.hud if workspace.addresses is not None else None


def recent_nightlies(workspace: Workspace, now: datetime) -> list[Nightly]:
    """Return the nightlies of the last days."""
    manifests, found = workspace.manifests, list[Nightly]()
    for each in manifests.revisions():
        if each.trigger != "nightly" or now - each.seen_at > _NIGHTS:
            continue
        builds = manifests.builds_of(each.key)
        ledgers = {
            build: manifests.read_history(manifests.path(LEDGER, build.revision, build.variant), Ledger) for build in builds
        }
        missing = tuple(build.name for build, ledger in ledgers.items() if ledger is None) if builds else (each.key,)
        ends = [run.ended_at for build in builds for run in manifests.last_runs(build).values() if run.ended_at is not None]
        found.append(Nightly(each.key, each.seen_at, missing, max(ends, default=None) if not missing else None))
    return found


def preview(workspace: Workspace, troubles: Sequence[Trouble], now: datetime) -> list[Message]:
    """Return the messages that a pass would make; nothing is kept or sent."""
    known = _read(workspace)
    return tell(recognise(troubles, known.told), known.told, notify_settings(workspace).routes, now)[0]


def notify(
    workspace: Workspace,
    troubles: Sequence[Trouble],
    now: datetime,
    deliver: Callable[[str, outbox.Post], bool] = send,
) -> Pass:
    """Remember and send what has changed; `deliver` sends a post to an address. What cannot be sent waits."""
    routes = notify_settings(workspace).routes
    with _turn(workspace) as check:
        known = _read(workspace)
        named = recognise(troubles, known.told)
        messages, told = tell(named, known.told, routes, now)
        waiting, lost = outbox.give_up(outbox.put(known.waiting, messages, routes), routes, now)
        book = _Book(workspace, check, replace(known, told=told, waiting=waiting))
        if book.state != known:
            book.keep()
        faults, sent, began = [f"given up: {message.title}" for message in lost], list[outbox.Post](), monotonic()
        for post in outbox.due(waiting, routes, now):
            if monotonic() - began > _LONGEST_S:
                break
            missed = _send(book, post, routes[post.route], now, deliver)
            faults += missed
            sent += [] if missed else [post]
        steps: tuple[str, ...] = ()
        try:
            steps = _update_issues(book, named, now)
        except AccelCiError as error:
            faults.append(f"the issues: {error}")
            wait_s = getattr(error, "wait_s", _BEFORE_ISSUES_S)
            book.keep(issues_after=now + timedelta(seconds=wait_s))
        return Pass(tuple(messages), tuple(sent), tuple(faults), steps, len(book.state.waiting))


@dataclass
class _Book:
    """The state of a pass, which is kept whenever it changes; `check` raises if another machine has the turn by now."""

    workspace: Workspace
    check: Callable[[], None]
    state: Notified

    def keep(self, **changed: Any) -> None:
        self.check()
        self.state = replace(self.state, **changed)
        self.workspace.manifests.write(self.workspace.manifests.path(NOTIFIED), self.state)


def _send(
    book: _Book, post: outbox.Post, route: Route, now: datetime, deliver: Callable[[str, outbox.Post], bool]
) -> list[str]:
    """Send a post to each address of its route that has not taken it; return what went wrong, in words."""
    try:
        addresses = addresses_of(post.route, route)
    except AccelCiError as error:
        return [str(error)]
    faults, missed = list[str](), list[str]()
    book.keep(waiting=outbox.begin(book.state.waiting, post))
    for address in addresses:
        digest = address_digest(address)
        if digest in post.done:
            continue
        try:
            if deliver(address, post):
                book.keep(waiting=outbox.took(book.state.waiting, post, digest))
                continue
        except AccelCiError as error:
            faults.append(f"the route {post.route}: {shown_address(addresses, address)}: {error}")
        missed.append(shown_address(addresses, address))
    if not missed:
        book.keep(waiting=outbox.end(book.state.waiting, post))
        return []
    book.keep(waiting=outbox.put_off(book.state.waiting, post, now))
    words = f"{len(missed)} of {len(addresses)} addresses did not take post {post.id}: {', '.join(missed)}"
    return [*faults, f"the route {post.route}: {words}"]


def _update_issues(book: _Book, named: Mapping[str, Trouble], now: datetime) -> tuple[str, ...]:
    """Bring the issues up to date if anything has changed, and return the steps in words. Raises `AccelCiError`."""
    project, state = book.workspace.project, book.state
    settings, github = notify_settings(book.workspace).issues, project.settings.github
    if settings is None or github is None or is_paused(state.issues_after, now):
        return ()
    incidents = {name: trouble for name, trouble in named.items() if trouble.id.startswith("incident-")}
    shown = sorted((name, repr(replace(trouble, marks=frozenset()))) for name, trouble in incidents.items())
    digest = hashlib.sha256(repr((now.date(), shown)).encode("utf-8", "surrogatepass")).hexdigest()
    if digest == state.issues:
        return ()
    require_extra("github", "notify.issues")
    from accel_ci.github.client import open_github

    with open_github(github, project.root) as requests:
        known = read_issues(requests, github.repository, settings, now)
        steps = plan_steps(incidents, known, settings, now.date())
        take_steps(requests, github.repository, steps)
    book.keep(issues=digest, issues_after=None)
    return tuple(step.what for step in steps)


def _read(workspace: Workspace) -> Notified:
    """Read what was told. Raises `AccelCiError` if the file is damaged: without it, everything would be told again."""
    path = workspace.manifests.path(NOTIFIED)
    workspace.manifests.share.bring_file(path)
    return workspace.manifests.read(path, Notified) if path.exists() else Notified()


@contextmanager
def _turn(workspace: Workspace) -> Iterator[Callable[[], None]]:
    """Have the turn at the file, among all processes and machines."""
    path = workspace.manifests.path(NOTIFIED)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")), workspace.manifests.share.turn(path.with_suffix(".turn")) as check:
        yield check
