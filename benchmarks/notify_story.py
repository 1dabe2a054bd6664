"""Forty nights with faults, judged as real ones are, and the messages that they cause: they go to a chat on loopback.

    python -m benchmarks.notify_story

A flaky test, a bad card, a break of upstream's, a crash and a break of the backend's that returns, a nightly that does not
start, a sensor and a job that fail. Each trouble may cause two messages each time that it occurs: at its begin, and its end.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import click
import numpy as np

from accel_ci.notify.current import notify, notify_settings
from accel_ci.notify.silence import Nightly, nightly_troubles, tick_troubles
from accel_ci.notify.troubles import Trouble, troubles_of
from accel_ci.quality.incidents import Incident, follow, incidents_of
from accel_ci.quality.judgement import Incidents, JudgedRevision
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.chat_server import Chat, serve_chat
from accel_ci_tests.fixtures.project import write_project
from benchmarks.quality_faults import Fault, World, judged_nights, op_of

NIGHTS = 40
FIRST = datetime(2026, 10, 1, 2, tzinfo=timezone.utc)
MISSED = 28
"""The nightly that does not start."""

ROUTES = {
    "upstream-watch": {"urls_from": "STORY_WATCH", "causes": ["upstream"]},
    "on-call": {"urls_from": "STORY_ON_CALL", "causes": ["infra", "run", "silence"]},
    "backend-team": {"urls_from": "STORY_TEAM", "causes": ["backend", "unknown", "flaky"]},
}


@dataclass(frozen=True)
class Told:
    """A message: the night, the route, the trouble and the title."""

    night: int
    route: str
    name: str
    title: str


@dataclass(frozen=True)
class Story:
    """The messages of the nights, the number of failures and of incidents, and the posts that the chat took."""

    told: tuple[Told, ...]
    failures: int
    incidents: int
    posts: int

    def of_each(self) -> dict[str, list[str]]:
        """The titles of the messages on each trouble."""
        found: dict[str, list[str]] = {}
        for each in self.told:
            found.setdefault(each.name, []).append(each.title)
        return found


def faults() -> list[Fault]:
    """The faults of the story: tests of one op are equal modulo 40."""

    def broken(kind: str, cause: str, begin: int, end: int, op: int, count: int, outcome: str = "failed") -> Fault:
        tests = frozenset(range(op, 400, 40)[:count])
        variants = ("main",) if cause == "upstream" else ("pinned", "main")
        return Fault(
            kind, cause, begin, end, tests, variants=variants, outcome=outcome, name=f"{kind} {begin}",
            signature=lambda _: f"op {op} is wrong",
        )  # fmt: skip

    return [
        Fault("flaky", "flaky", 3, NIGHTS, frozenset({7}), 0.3, signature=lambda _: "a race", name="flaky"),
        Fault("bad card", "infra", 9, 13, chance=0.5, card=(1, 2), signature=lambda _: "tensors differ", name="card 1:2"),
        broken("upstream break", "upstream", 14, 18, op=3, count=9),
        broken("crash", "backend", 19, 22, op=11, count=6, outcome="crashed"),
        broken("break", "backend", 24, 26, op=20, count=10),
        broken("break", "backend", 33, 36, op=20, count=10),
    ]


def world() -> World:
    """The backend of the story: versions move on where something breaks or is mended."""
    made = World(np.random.default_rng(40), NIGHTS, faults())
    backend = upstream = 0
    for night in range(NIGHTS):
        changed = {fault.cause for fault in made.faults if night in (fault.begin, fault.end)}
        backend += "backend" in changed or night % 4 == 1
        upstream += "upstream" in changed or (night % 2 == 1 and "backend" not in changed)
        made.backend[night], made.upstream[night] = backend, upstream
    return made


def other_troubles(night: int, workspace: Workspace, now: datetime) -> Iterator[Trouble]:
    """The troubles that are no incidents: those of the nightly, of a sensor and of a job."""
    silence = notify_settings(workspace).silence
    times = [FIRST + timedelta(days=number) for number in range(max(0, night - 2), night + 1)]
    nightlies = [Nightly(f"nightly-{at:%Y%m%d}", at, (), at + timedelta(hours=4)) for at in times if at != _at(MISSED)]
    yield from nightly_troubles(times, nightlies, silence, now)
    yield from tick_troubles({"upstream_main_sensor": [night not in (30, 31)] * silence.failed_ticks}, silence)
    words = f"The run of nightly-{night} " + ("failed." if night in (37, 38) else "has succeeded.")
    yield Trouble("run-nightly", night in (37, 38), "run", "the job nightly fails", words)


def play(workspace: Workspace, chat: Chat) -> Story:
    """Play the nights: judge, follow the incidents, and tell in the morning."""
    judged = {each.night: each for each in judged_nights(world(), frozenset({MISSED}))}
    incidents: list[Incident] = []
    revisions: list[JudgedRevision] = []
    told: list[Told] = []
    failures = 0
    for night in range(NIGHTS):
        now = _at(night) + timedelta(hours=6)
        if night in judged:
            blames, key = judged[night].blames, f"nightly-{night:02d}"
            failures += len(blames)
            incidents = follow(incidents, incidents_of(blames, op_of), lambda _: True, key)
            counts = Counter(blame.cause for blame in blames)
            revisions.append(JudgedRevision(key, _at(night), dict(counts)))
        found = Incidents(tuple(incidents), tuple(revisions))
        troubles = troubles_of(found, notify_settings(workspace).settled, "http://hud.example/")
        done = notify(workspace, [*troubles, *other_troubles(night, workspace, now)], now)
        told += [Told(night, message.route, message.name, message.title) for message in done.messages]
    return Story(tuple(told), failures, len(incidents), len(chat.posts))


def tell_story(folder: Path) -> Story:
    """Play the story in a folder, with a chat on loopback."""
    with serve_chat() as chat:
        for route in ROUTES.values():
            os.environ[str(route["urls_from"])] = chat.address(str(route["urls_from"]))
        return play(Workspace(write_project(folder, notify={"routes": ROUTES})), chat)


def main() -> None:
    """Print the messages of each night, and the number of messages on each trouble."""
    with tempfile.TemporaryDirectory(prefix="notify-story-") as folder:
        story = tell_story(Path(folder))
    for each in story.told:
        click.echo(f"night {each.night:2}  {each.route:15} {each.title}")
    click.echo(f"\n{'messages':>8}  trouble")
    for titles in story.of_each().values():
        click.echo(f"{len(titles):8}  {titles[0]}")
    click.echo(
        f"\n{NIGHTS} nights, {story.failures} failures, {story.incidents} incidents: {len(story.told)} messages "
        f"in {story.posts} posts"
    )


def _at(night: int) -> datetime:
    return FIRST + timedelta(days=night)


if __name__ == "__main__":
    main()
