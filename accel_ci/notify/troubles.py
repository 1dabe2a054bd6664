"""Troubles that a person should know about, from beginning to end. Incidents become troubles here.

`silence.py` makes them of silences, and `accel_ci.defs.notify` of failed runs. `messages.py` decides who gets a message.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from accel_ci.config.notify_settings import Settled, Severity, TroubleCause
from accel_ci.hud.addresses import incident_address
from accel_ci.model import Build
from accel_ci.quality.incidents import Incident
from accel_ci.quality.judgement import Incidents

_SEVERITIES: dict[TroubleCause, Severity] = {"flaky": "info", "upstream": "warning", "unknown": "warning"}
_MOST_MARKS = 200
_PLAIN_TEST = re.compile(r"[A-Za-z0-9_./:,\[\]-]{1,300}")
"""Tests that a command in a message may name: other names could mean something else to a shell or to a chat."""


@dataclass(frozen=True)
class Trouble:
    """Something that is wrong, or was.

    `id` is unique among all troubles of a moment. Two that share a mark are the same, even if the id has changed since: a
    judgement that knows more may give an incident another one. `since` and `last` are in words, `tests` counts what fails
    now.
    """

    id: str
    is_open: bool
    cause: TroubleCause
    title: str
    sentence: str
    since: str = ""
    last: str = ""
    tests: int = 0
    owner: str | None = None
    link: str | None = None
    command: str | None = None
    marks: frozenset[str] = frozenset()

    @property
    def severity(self) -> Severity:
        """The severity, by the cause."""
        return _SEVERITIES.get(self.cause, "failure")


def troubles_of(found: Incidents, settled: Settled, hud: str | None) -> list[Trouble]:
    """Return the troubles of all incidents; those that are over are closed ones. `hud` is the address of the HUD."""
    places = {night.revision: place for place, night in enumerate(found.nights)}

    def is_open(incident: Incident) -> bool:
        quiet = len(found.nights) - 1 - places.get(incident.last, -1)
        return incident.state != "fixed" or quiet < getattr(settled, incident.cause)

    return [_trouble(incident, hud, is_open) for incident in found.incidents]


def _trouble(incident: Incident, hud: str | None, is_open: Callable[[Incident], bool]) -> Trouble:
    link = f"{hud}{incident_address(incident.id)}" if hud is not None else None
    return Trouble(
        f"incident-{incident.id}", is_open(incident), incident.cause, incident.title, incident.sentence, incident.first,
        incident.last, len(incident.now), incident.owner, link, _command(incident), frozenset(_marks(incident)),
    )  # fmt: skip


def _command(incident: Incident) -> str | None:
    """The command that runs a test of the incident again: the first one that has a plain name."""
    if not incident.now or incident.cause == "infra":
        return None
    variant, _, test = min(incident.now, key=lambda key: (_PLAIN_TEST.fullmatch(key[2]) is None, key))
    build = Build(incident.last, variant).name
    return f"accel-ci reproduce {build}{f' {shlex.quote(test)}' if _PLAIN_TEST.fullmatch(test) else ''} --run"


def _marks(incident: Incident) -> Iterator[str]:
    marks: Sequence[str] = sorted(map(repr, incident.marks))
    for mark in marks[:_MOST_MARKS]:
        yield hashlib.sha256(mark.encode("utf-8", "surrogatepass")).hexdigest()[:12]
