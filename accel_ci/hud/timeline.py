"""The work of the cards in a build over time, as lanes of spans: who ran which suite when, the set-up and the gaps. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accel_ci.model import CardReport
from accel_ci.results.questions import CardWork

SET_UP = "set-up"
"""The kind of a span before the first test of a card; those of other spans are suites."""

MOST_CARDS = 64
"""So many cards have a lane: unhealthy ones first, then those with the most work."""

_BUSY = 0.05
"""A slice in which a card works for less than this share is a gap."""

_MOST_SPANS = 4000


@dataclass(frozen=True)
class Span:
    """A part of a lane in percent of the whole time, its kind, and its seconds from the begin of the tests on."""

    kind: str
    start: float
    width: float
    from_s: float
    to_s: float
    busy: float


@dataclass(frozen=True)
class Lane:
    """A card with its spans in the order of time, and its seconds of work, set-up and waiting."""

    card: str
    healthy: bool
    spans: tuple[Span, ...]
    busy_s: float
    setup_s: float
    idle_s: float


@dataclass(frozen=True)
class Timeline:
    """The lanes of the cards. `left_out` counts cards without a lane; `suites` are in the order of their colours."""

    lanes: tuple[Lane, ...]
    suites: tuple[str, ...]
    seconds: float
    left_out: int = 0


def shown_cards(reports: Sequence[CardReport]) -> list[CardReport]:
    """Choose the cards that have a lane, by name."""
    worst = sorted(reports, key=lambda card: (card.healthy, -card.busy_s))[:MOST_CARDS]
    return sorted(worst, key=lambda card: (len(card.card), card.card))


def slices_for(cards: int) -> int:
    """Choose the number of slices of time, so that a page stays small."""
    return max(40, min(240, _MOST_SPANS // max(1, cards)))


def make_timeline(reports: Sequence[CardReport], work: CardWork | None, slices: int) -> Timeline | None:
    """Make the lanes from the reports of the cards and their work; None where no attempt tells when it ran."""
    if work is None:
        return None
    seconds: defaultdict[str, defaultdict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for part in work.slices:
        of_slice = seconds[part.card][part.slice]
        of_slice[part.suite] = of_slice.get(part.suite, 0.0) + part.seconds
    whole = work.width_s * slices
    shown = shown_cards(reports)
    lanes = [_lane(report, seconds[report.card], work.width_s, slices, whole) for report in shown]
    suites = tuple(sorted({part.suite for part in work.slices}))
    return Timeline(tuple(lanes), suites, whole, len(reports) - len(shown))


def _lane(report: CardReport, seconds: Mapping[int, Mapping[str, float]], width_s: float, slices: int, whole: float) -> Lane:
    spans: list[Span] = []
    first = min((number for number, of_slice in seconds.items() if sum(of_slice.values()) > 0), default=None)
    lead = 0.0 if first is None else first * width_s
    setup = min(report.setup_s, lead)
    if setup > 0:
        spans.append(_span(SET_UP, lead - setup, lead, whole, 1.0))
    run: list[tuple[int, str, float]] = []
    for number in range(slices + 1):
        of_slice = seconds.get(number, {})
        busy = sum(of_slice.values()) / width_s
        suite = max(of_slice, key=lambda each: of_slice[each]) if busy >= _BUSY else None
        if run and suite != run[-1][1]:
            share = sum(each for *_, each in run) / len(run)
            spans.append(_span(run[0][1], run[0][0] * width_s, (run[-1][0] + 1) * width_s, whole, min(1.0, share)))
            run = []
        if suite is not None:
            run.append((number, suite, busy))
    worked = sum(sum(of_slice.values()) for of_slice in seconds.values())
    idle = max(0.0, whole - worked - report.setup_s)
    return Lane(report.card, report.healthy, tuple(spans), worked, report.setup_s, idle)


def _span(kind: str, begin: float, end: float, whole: float, busy: float) -> Span:
    return Span(kind, round(100 * begin / whole, 2), round(100 * (end - begin) / whole, 2), begin, end, round(busy, 3))
