"""The page of one build as frozen dataclasses, and the pure function that makes it.

What its lists have, and whose the failures are, is decided here. No file is read here (`gather_build.py`), and no string is
formatted for HTML (`text.py`, `render.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from accel_ci import model
from accel_ci.hud.changes import Changes, Identity
from accel_ci.hud.groups import TestGroup, group_tests
from accel_ci.hud.records import BuildRecord, BuildTests
from accel_ci.hud.speed import BuildSpeed
from accel_ci.hud.states import Bar, State, build_state, verdict_bar
from accel_ci.hud.stops import Stop, find_stop
from accel_ci.hud.timeline import Timeline
from accel_ci.model import Build, Revision, TestVerdict, Trigger, Verdict
from accel_ci.pipelines import LEDGER
from accel_ci.quality.causes import Blame
from accel_ci.quality.incidents import Incident
from accel_ci.quality.judgement import Causes
from accel_ci.quality.versions import BREAKAGES, Cause

Blamed = Literal["new", "broken base", "flaky", "infra", "unknown"]
"""A failure to the author of a change: the change's own, one that the base has too, or nobody's."""

SLOWEST = 20
"""The number of tests that are listed as the slowest of a build."""


@dataclass(frozen=True)
class BuildFacts:
    """The facts that a build's page is made from. What is missing or unreadable is None.

    `before` is the build that this one is compared with, `runs` the Dagster runs that made it, and `queue_s` their seconds
    in a queue.
    """

    record: BuildRecord
    revision: Revision | None
    trigger: Trigger | None
    seen_at: datetime
    tests: BuildTests | None = None
    changes: Changes | None = None
    causes: Causes | None = None
    timeline: Timeline | None = None
    before: Build | None = None
    speed: BuildSpeed | None = None
    queue_s: float | None = None
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuildIncident:
    """The failures of a build that have one cause, by suite and test, and the evidence.

    `id` is None for failures that belong to no incident that is known any more.
    """

    id: str | None
    cause: Cause
    title: str
    sentence: str
    probability: float
    owner: str | None
    place: str | None
    since: str | None
    tests: tuple[Identity, ...]
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class BuildPage:
    """One build. `stop` is None with a ledger. `groups` are tests by the signature of their message."""

    record: BuildRecord
    revision: Revision | None
    trigger: Trigger | None
    seen_at: datetime
    state: State
    stop: Stop | None
    bar: Bar
    verdicts_known: bool
    changes: Changes | None
    incidents: tuple[BuildIncident, ...]
    blamed: Mapping[Blamed, int]
    causes_of: Mapping[Identity, Cause]
    groups: Mapping[Verdict, tuple[TestGroup, ...]]
    slowest: tuple[TestVerdict, ...]
    cards: tuple[tuple[str, model.CardReport], ...]
    timeline: Timeline | None
    before: Build | None
    speed: BuildSpeed | None
    queue_s: float | None
    runs: tuple[str, ...]

    @property
    def new(self) -> frozenset[Identity]:
        """The tests that fail and did not in the build before."""
        return frozenset((*self.changes.new, *self.changes.returned)) if self.changes else frozenset()

    def causes_in(self, group: TestGroup) -> list[Cause]:
        """The causes of a group's failures."""
        return sorted({self.causes_of[test.identity] for test in group.tests if test.identity in self.causes_of})


def make_build_page(facts: BuildFacts, incidents: Sequence[Incident], now: datetime) -> BuildPage:
    """Make the page of a build; `incidents` are those that its revision may belong to."""
    record, tests = facts.record, facts.tests
    verdicts = sorted(tests.verdicts if tests else (), key=lambda v: (v.suite, v.test))
    blames = facts.causes.blames if facts.causes else ()
    new = {*facts.changes.new, *facts.changes.returned} if facts.changes else set()
    groups: dict[Verdict, tuple[TestGroup, ...]] = {
        verdict: group_tests([v for v in verdicts if v.verdict == verdict], new)
        for verdict in ("failed", "infra", "not_run", "flaky")
    }
    slowest = sorted((v for v in verdicts if v.duration_s), key=lambda v: -(v.duration_s or 0))
    return BuildPage(
        record=record,
        revision=facts.revision,
        trigger=facts.trigger,
        seen_at=facts.seen_at,
        state=build_state(record, now, tests),
        stop=None if LEDGER in record.present else find_stop(record, verdicts),
        bar=verdict_bar(record.ledger.counts) if record.ledger else {},
        verdicts_known=tests is not None,
        changes=facts.changes,
        incidents=tuple(_incidents(record.build, blames, incidents)),
        blamed=count_blames(record.build, blames),
        causes_of={blame.identity: blame.cause for blame in blames},
        groups=groups,
        slowest=tuple(slowest[:SLOWEST]),
        cards=_cards(record),
        timeline=facts.timeline,
        before=facts.before,
        speed=facts.speed,
        queue_s=facts.queue_s,
        runs=facts.runs,
    )


def count_blames(build: Build, blames: Iterable[Blame]) -> dict[Blamed, int]:
    """Count the failures of a build as the author of a change sees them."""
    return dict(Counter(_blamed(build, blame) for blame in blames))


def _blamed(build: Build, blame: Blame) -> Blamed:
    if blame.cause not in BREAKAGES:
        return blame.cause  # type: ignore[return-value]  # the other causes have the same names
    return "new" if blame.since is None or blame.since.revision == build.revision else "broken base"


def _incidents(build: Build, blames: Sequence[Blame], incidents: Sequence[Incident]) -> list[BuildIncident]:
    """Put each failure to the incident that has it, the largest first."""
    owner: dict[Identity, Incident] = {}
    for incident in incidents:
        for variant, suite, test in incident.tests:
            if variant == build.variant:
                owner.setdefault((suite, test), incident)  # open ones come first
    found: defaultdict[tuple[str | None, Cause], list[Blame]] = defaultdict(list)
    for blame in blames:
        known = owner.get(blame.identity)
        found[known.id if known else None, known.cause if known else blame.cause].append(blame)
    by_id = {incident.id: incident for incident in incidents}
    made = [_incident(by_id.get(name or ""), cause, of_one) for (name, cause), of_one in found.items()]
    return sorted(made, key=lambda each: (-len(each.tests), each.id or ""))


def _incident(incident: Incident | None, cause: Cause, blames: Sequence[Blame]) -> BuildIncident:
    first = max(blames, key=lambda blame: blame.probability)
    evidence = dict.fromkeys(line.text for blame in blames for line in blame.evidence)
    return BuildIncident(
        incident.id if incident else None,
        cause,
        incident.title if incident else first.signature or first.sentence,
        first.sentence,
        first.probability,
        incident.owner if incident else None,
        incident.place if incident else None,
        first.since.revision if first.since else None,
        tuple(sorted(blame.identity for blame in blames)),
        tuple(evidence),
    )


def _cards(record: BuildRecord) -> tuple[tuple[str, model.CardReport], ...]:
    stages = {"smoke": record.smoke_results, "device": record.device_test_results}
    cards = [(stage, card) for stage, results in stages.items() if results for card in results.cards]
    return tuple(sorted(cards, key=lambda pair: (pair[1].healthy, pair[0], pair[1].card)))
