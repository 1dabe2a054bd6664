"""Join failures of one cause into incidents, and follow incidents from build to build.

A person works on causes, not on tests: a night with 400 failures of three causes has three incidents. Which cause a failure
has is `causes.py`'s part.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from accel_ci.quality.causes import Blame
from accel_ci.quality.versions import Cause

if TYPE_CHECKING:
    from scipy.cluster.hierarchy import DisjointSet

State = Literal["open", "fixed", "returned"]
Key = tuple[str, str, str]
"""Variant, suite and test."""


@dataclass(frozen=True)
class Incident:
    """Failures of one cause. `first` and `last` are revisions, the first and the last in which it was seen.

    `id` stays the same over its life. It is `fixed` when a revision that ran its tests does not show it, and has `returned`
    when it is seen after that. `tests` are all tests that it ever hit, `now` those of its last revision.
    """

    id: str
    cause: Cause
    title: str
    sentence: str
    probability: float
    first: str
    last: str
    state: State
    tests: frozenset[Key]
    now: frozenset[Key]
    signatures: frozenset[str]
    place: str | None = None
    revisions: int = 1
    owner: str | None = None

    @cached_property
    def marks(self) -> frozenset[Hashable]:
        """The marks by which an incident of another night is known to be the same."""
        if self.place is not None:
            return frozenset({("place", self.place)})
        signatures = {("signature", signature) for signature in self.signatures}
        return frozenset(signatures | {("test", suite, test) for _, suite, test in self.tests})


def incidents_of(blames: Sequence[Blame], op_of: Callable[[str, str], str | None] = lambda *_: None) -> list[Incident]:
    """Join the failures of a revision, in all its variants; the largest incident comes first.

    Failures of the infrastructure belong together by place, else by reason. Breakages that begin in one build, and flakes,
    do so by signature, by test, and breakages also by op (`op_of` of suite and test) or file.
    """
    from scipy.cluster.hierarchy import DisjointSet  # scipy is loaded on first use

    joined = DisjointSet(map(_key, blames))
    for blame in blames:
        for bond in _bonds(blame, op_of):
            joined.add(bond)
            joined.merge(_key(blame), bond)
    _place_unknown(blames, joined)
    groups: defaultdict[Hashable, list[Blame]] = defaultdict(list)
    for blame in blames:
        groups[joined[_key(blame)]].append(blame)
    found = [_incident(group) for group in groups.values()]
    return sorted(found, key=lambda each: (-len(each.now), each.id))


def _place_unknown(blames: Sequence[Blame], joined: DisjointSet) -> None:
    """Join each failure of unknown cause to those of one known cause that have its signature, if there are any."""
    known: defaultdict[str | None, list[Blame]] = defaultdict(list)
    for blame in blames:
        if blame.cause != "unknown":
            known[blame.signature].append(blame)
    for blame in blames:
        if blame.cause == "unknown" and blame.signature is not None and (others := known[blame.signature]):
            of_test = [other for other in others if other.identity == blame.identity]
            joined.merge(_key(blame), _key((of_test or others)[0]))


def follow(known: Iterable[Incident], seen: Iterable[Incident], ran: Callable[[Key], bool], revision: str) -> list[Incident]:
    """Bring known incidents up to date with those of a newer revision; `ran` says whether a test has run there.

    An incident is continued by one of the same cause that shares a signature or a test, or is at the same place. One of
    unknown cause is continued by any such one, and has its cause from then on. One that is not seen is fixed if one of its
    tests ran.
    """
    before, seen = {incident.id: incident for incident in known}, list(seen)
    wanted = frozenset[Hashable]().union(*(incident.marks for incident in seen))
    index: defaultdict[Hashable, list[str]] = defaultdict(list)
    for incident in before.values():
        if not wanted.isdisjoint(incident.marks):
            for mark in wanted & incident.marks:
                index[mark].append(incident.id)
    result, continued = dict(before), set[str]()
    for incident in seen:
        matches = [
            name
            for mark in incident.marks
            for name in index[mark]
            if name not in continued
            and (before[name].cause == incident.cause or "unknown" in (before[name].cause, incident.cause))
        ]
        if not matches:
            result[incident.id] = incident
            continued.add(incident.id)
            continue
        best = max(matches, key=lambda name: (before[name].state != "fixed", before[name].last, matches.count(name), name))
        old = before[best]
        continued.add(best)
        result[best] = replace(
            incident, id=old.id, first=old.first, state="returned" if old.state != "open" else "open",
            tests=old.tests | incident.tests, signatures=old.signatures | incident.signatures,
            revisions=old.revisions + 1, owner=old.owner,
            cause=old.cause if incident.cause == "unknown" else incident.cause,
        )  # fmt: skip
    for name, incident in before.items():
        if name not in continued and incident.state != "fixed" and any(map(ran, incident.now)):
            result[name] = replace(incident, state="fixed")
    return sorted(result.values(), key=lambda each: (each.state == "fixed", -len(each.now), each.id))


def _bonds(blame: Blame, op_of: Callable[[str, str], str | None]) -> Iterator[Hashable]:
    if blame.cause == "infra" and blame.since is None:
        yield ("place", blame.place) if blame.place is not None else ("reason", blame.signature)
        return
    begun = blame.since.revision if blame.since is not None and not blame.retried else None
    if blame.cause == "flaky":
        begun = None
    yield blame.cause, "test", blame.suite, blame.test
    if blame.signature is not None:
        yield blame.cause, "signature", begun, blame.signature
    if blame.cause in ("backend", "upstream", "infra"):
        op = op_of(blame.suite, blame.test)
        yield (blame.cause, "op", begun, op) if op else (blame.cause, "file", begun, blame.test.partition("::")[0])


def _incident(blames: Sequence[Blame]) -> Incident:
    surest = max(blames, key=lambda blame: (blame.probability, blame.test))
    signatures = frozenset(blame.signature for blame in blames if blame.signature is not None)
    tests = frozenset(map(_key, blames))
    place = surest.place if surest.cause == "infra" else None
    first = min((blame.since or blame.build).revision for blame in blames)
    identity = repr((surest.cause, first, place, sorted(signatures), () if signatures else sorted(tests)))
    names = sorted({blame.test for blame in blames})
    title = f"{place.kind} {place.name}" if place is not None else max(sorted(signatures), key=len, default=names[0])
    revision = surest.build.revision
    return Incident(
        hashlib.sha256(identity.encode()).hexdigest()[:12], surest.cause, title, surest.sentence, surest.probability,
        first, revision, "open", tests, tests, signatures, f"{place.kind} {place.name}" if place else None,
    )  # fmt: skip


def _key(blame: Blame) -> Key:
    return blame.build.variant, blame.suite, blame.test
