"""The cards of a project by day: their health, their work, and the failures that passed elsewhere. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from accel_ci.model import CardReport
from accel_ci.quality.places import BadPlace, Place, PlaceCount

_MOST_DAYS = 30


@dataclass(frozen=True)
class CardDay:
    """A card on a day, over all builds of it.

    `healthy` is None where no build reports the card's health. `failures` are failed attempts of tests that passed on
    another card; `attempts` counts the work of the builds in which some test failed.
    """

    healthy: bool | None = None
    reason: str | None = None
    attempts: int = 0
    failures: int = 0

    def plus(self, report: CardReport | None = None, count: PlaceCount | None = None) -> CardDay:
        """Add what a build tells of the card."""
        return CardDay(
            self.healthy if report is None else report.healthy and self.healthy is not False,
            self.reason if report is None or report.reason is None else report.reason,
            self.attempts + (count.attempts if count is not None else 0),
            self.failures + (count.failures if count is not None else 0),
        )

    @property
    def share(self) -> float:
        """The share of the attempts that failed and passed elsewhere."""
        return self.failures / self.attempts if self.attempts else 0.0


@dataclass(frozen=True)
class CardRow:
    """A card with what is known of it on each day. `bad` is there for one that fails more often than its tests do."""

    name: str
    days: tuple[CardDay | None, ...]
    bad: BadPlace | None = None

    @property
    def total(self) -> CardDay:
        """The sums over all days, and the health of the last one that is known."""
        known = [day for day in self.days if day is not None]
        health = next((day for day in reversed(known) if day.healthy is not None), CardDay())
        return CardDay(health.healthy, health.reason, sum(day.attempts for day in known), sum(day.failures for day in known))


@dataclass(frozen=True)
class CardsPage:
    """The cards, bad and unhealthy ones first, and the days of their columns, the oldest first."""

    days: tuple[date, ...]
    cards: tuple[CardRow, ...]


@dataclass(frozen=True)
class CardBuild:
    """A build's news of cards: the reports of their health, the counts of their failures, and the bad places."""

    day: date
    reports: Sequence[CardReport] = ()
    counts: Sequence[PlaceCount] = ()
    bad: Sequence[BadPlace] = ()


def make_cards(builds: Sequence[CardBuild]) -> CardsPage:
    """Make the page of builds, the oldest first.

    Reports of health have no host. They belong to the card of that name where only one host has such a card.
    """
    hosts: defaultdict[str, set[str]] = defaultdict(set)
    for place in (count.place for build in builds for count in build.counts if count.place.kind == "card"):
        host, _, card = place.name.rpartition(":")
        hosts[card].add(host)
    seen: defaultdict[str, dict[date, CardDay]] = defaultdict(dict)
    bad: Mapping[str, BadPlace] = {}
    for build in builds:
        for report in build.reports:
            host = next(iter(hosts[report.card])) if len(hosts[report.card]) == 1 else ""
            days = seen[f"{host}:{report.card}" if host else report.card]
            days[build.day] = days.get(build.day, CardDay()).plus(report=report)
        for count in build.counts:
            if count.place.kind == "card":
                days = seen[count.place.name]
                days[build.day] = days.get(build.day, CardDay()).plus(count=count)
        if build.counts:
            bad = {_shown(one.place): one for one in build.bad}
    shown = sorted({day for days in seen.values() for day in days})[-_MOST_DAYS:]
    rows = [CardRow(name, tuple(map(days.get, shown)), bad.get(name)) for name, days in seen.items()]
    rows += [CardRow(name, tuple(None for _ in shown), place) for name, place in bad.items() if name not in seen]
    return CardsPage(tuple(shown), tuple(sorted(rows, key=_worst_first)))


def _shown(place: Place) -> str:
    """The name of a place; of a host or a driver with its kind."""
    return place.name if place.kind == "card" else f"{place.kind} {place.name}"


def _worst_first(row: CardRow) -> tuple[bool, bool, float, str, int]:
    host, _, card = row.name.rpartition(":")
    number = int(card) if card.isdecimal() else 1 << 40
    return row.bad is None, row.total.healthy is not False, -row.total.share, host, number
