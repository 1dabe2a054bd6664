"""The verdicts of rule sets on the builds of a period, and their differences. Pure; `replay.py` plays them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from accel_ci.quality.incidents import Key
from accel_ci.quality.quarantine import Entry
from accel_ci.quality.versions import BREAKAGES, Cause

Failure = tuple[str, str, str]
"""Build, suite and test."""


MoveState = Literal["active", "muted", "disabled", "released", "over budget"]


@dataclass(frozen=True)
class Move:
    """A test that went into the quarantine, changed its state there, came out, or had no room, after a revision."""

    revision: str
    variant: str
    suite: str
    test: str
    state: MoveState
    by: str
    reason: str

    @classmethod
    def of(cls, revision: str, entry: Entry, state: MoveState) -> Move:
        """The move of an entry."""
        return cls(revision, entry.variant, *entry.identity, state, entry.by, entry.reason)


@dataclass
class Played:
    """The verdicts of a rule set on the builds of a period; failures and incidents are counted by cause."""

    failures: Counter[str] = field(default_factory=Counter)
    incidents: Counter[str] = field(default_factory=Counter)
    causes: dict[Failure, Cause] = field(default_factory=dict)
    flaky: set[Key] = field(default_factory=set)
    """The tests that were called flaky at least once."""
    moves: list[Move] = field(default_factory=list)
    quarantined: set[Key] = field(default_factory=set)
    """The tests that were muted or disabled at some time."""
    silenced: dict[Failure, str] = field(default_factory=dict)
    """The failures of tests that were muted or disabled when the build began, with that state."""
    places: dict[str, list[str]] = field(default_factory=dict)
    """The bad places, each with the builds in which it was named."""

    @property
    def hidden(self) -> dict[Failure, str]:
        """The debt: the breakages that nobody would have seen, each with the state of its test."""
        return {failure: state for failure, state in self.silenced.items() if self.causes[failure] in BREAKAGES}

    def moved(self, state: str) -> int:
        """The number of moves to a state."""
        return sum(move.state == state for move in self.moves)


@dataclass(frozen=True)
class Change:
    """A failure whose cause another rule set sees differently."""

    build: str
    suite: str
    test: str
    before: Cause | None
    after: Cause | None


@dataclass(frozen=True)
class Missed:
    """A breakage, by one rule set, that another one excuses or hides; `why` says how."""

    build: str
    suite: str
    test: str
    cause: Cause
    why: str


@dataclass(frozen=True)
class Difference:
    """The differences between two rule sets. "Only" is what one quarantines, and the other does not."""

    causes: tuple[Change, ...]
    quarantined_only_before: tuple[Key, ...]
    quarantined_only_after: tuple[Key, ...]
    missed_before: tuple[Missed, ...]
    missed_after: tuple[Missed, ...]


def difference(before: Played, after: Played) -> Difference:
    """Compare what two rule sets made of the same builds."""
    failures = sorted(before.causes.keys() | after.causes.keys())
    seen = ((failure, before.causes.get(failure), after.causes.get(failure)) for failure in failures)
    return Difference(
        tuple(Change(*failure, one, other) for failure, one, other in seen if one != other),
        tuple(sorted(before.quarantined - after.quarantined)),
        tuple(sorted(after.quarantined - before.quarantined)),
        tuple(_missed(before, after)),
        tuple(_missed(after, before)),
    )


def _missed(by: Played, seen_by: Played) -> Iterator[Missed]:
    for failure, cause in sorted(seen_by.causes.items()):
        if cause not in BREAKAGES:
            continue
        said = by.causes.get(failure)
        if said in ("flaky", "infra"):
            yield Missed(*failure, cause, f"called {said}")
        elif failure in by.silenced and failure not in seen_by.silenced:
            yield Missed(*failure, cause, by.silenced[failure])
