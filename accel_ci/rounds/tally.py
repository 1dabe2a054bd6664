"""What the events of workers amount to: attempts, the health of cards, and times. No effects but the callback."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from accel_ci.model import FAILING_OUTCOMES, Attempt, CardReport, RoundReport
from accel_ci.plan.guided import lower_bound
from accel_ci.rounds.engine import cards_in, groups_of

TestKey = tuple[str, str]


@dataclass
class _Card:
    healthy: bool = True
    reason: str | None = None
    attempts: int = 0
    busy_s: float = 0.0
    setup_s: float = 0.0


class Tally:
    """Takes the events of all workers of a run, those of one card in the order in which they happened."""

    def __init__(self, cards: Sequence[str], on_attempt: Callable[[Attempt], None]) -> None:
        """Start with all cards taken for healthy."""
        self.attempts: list[Attempt] = []
        self.last_attempt = time.monotonic()
        self.last_event = time.monotonic()
        self._cards = {card: _Card() for card in cards}
        self._doubtful: defaultdict[str, list[int]] = defaultdict(list)  # failing attempts since the last healthy probe
        self._on_attempt = on_attempt
        self._done: defaultdict[int, set[TestKey]] = defaultdict(set)
        self._homes: dict[tuple[str, str], tuple[str, str]] = {}  # the card and host of each worker, as it said
        self._spans: dict[tuple[str, str], tuple[datetime, datetime]] = {}

    def take(
        self, round_number: int, worker: str, card: str | None, events: Iterable[Mapping[str, Any]], phase: str = ""
    ) -> None:
        """Take more events of a worker in; `card` (or group of cards) is the worker's, None when it alone has said so.

        `phase` tells workers apart that have one name in different parts of the round.
        """
        for event in events:
            self.last_event = time.monotonic()
            at = datetime.fromisoformat(event["at"])
            worker_group = (phase, worker.partition("-")[0])
            self._spans[worker_group] = (self._spans.get(worker_group, (at, at))[0], at)
            kind = event["event"]
            if kind == "worker_started":
                self._homes[phase, worker] = event["card"], event["host"]
            said, host = self._homes.get((phase, worker), (None, None))
            card = card or said
            if kind == "attempt":
                self._take_attempt(round_number, worker, card, host, event)
            elif kind == "probe":
                self._take_probe(event, card)
            elif kind in ("child_started", "collected"):
                for one in self._of(card):
                    one.setup_s += event["setup_s" if kind == "child_started" else "seconds"]

    def _of(self, card: str | None) -> list[_Card]:
        """The card of that name, or those of a group."""
        return [self._cards[name] for name in cards_in(card or "") if name in self._cards]

    def _take_attempt(
        self, round_number: int, worker: str, card: str | None, host: str | None, event: Mapping[str, Any]
    ) -> None:
        started_at = event.get("started_at")
        attempt = Attempt(
            suite=event["suite"],
            test=event["test"],
            round=round_number,
            outcome=event["outcome"],
            started_at=datetime.fromisoformat(started_at) if started_at is not None else None,
            duration_s=event.get("duration_s"),
            message=event.get("message"),
            output_tail=event.get("output_tail"),
            card=card,
            host=host,
            worker=worker,
        )
        key = (attempt.suite, attempt.test)
        if key in self._done[round_number]:
            return
        self._done[round_number].add(key)
        for one in self._of(attempt.card):
            one.attempts += 1
            one.busy_s += attempt.duration_s or 0.0
        if attempt.card is not None and attempt.outcome in FAILING_OUTCOMES:
            self._doubtful[attempt.card].append(len(self.attempts))
        self.attempts.append(attempt)
        self.last_attempt = time.monotonic()
        self._on_attempt(attempt)

    def _take_probe(self, event: Mapping[str, Any], name: str | None) -> None:
        """A probe of a group speaks for each of its cards: which of them is at fault it does not say."""
        if name is None:
            return
        for card in self._of(name):
            card.healthy, card.reason = event["healthy"], event["reason"]
        doubtful = self._doubtful.pop(name, [])
        if not event["healthy"]:
            reason = f"card {name} is unhealthy: {event['reason']}"
            for place in doubtful:
                self.attempts[place] = replace(self.attempts[place], infra=reason)

    def done(self, round_number: int) -> set[TestKey]:
        """The tests that have an attempt in the round."""
        return self._done[round_number]

    def healthy(self) -> list[str]:
        """The cards that no probe has found unhealthy last."""
        return [name for name, card in self._cards.items() if card.healthy]

    def groups(self, width: int) -> list[str]:
        """The healthy cards, in groups of `width` where that is more than one."""
        return groups_of(self.healthy(), width)

    def span_s(self, phase: str) -> float:
        """How long the workers of the phase have been at it, without the time between two drivers."""
        return sum((last - first).total_seconds() for (name, _), (first, last) in self._spans.items() if name == phase)

    def card_reports(self) -> tuple[CardReport, ...]:
        """What each card did."""
        return tuple(
            CardReport(name, card.healthy, card.reason, card.attempts, card.busy_s, card.setup_s)
            for name, card in self._cards.items()
        )

    def round_report(self, round_number: int, makespan_s: float) -> RoundReport:
        """What a round did; its lower bound is of the measured durations and the cards that ran a test."""
        attempts = [attempt for attempt in self.attempts if attempt.round == round_number]
        held = [cards_in(attempt.card or "") for attempt in attempts]
        cards = len({card for group in held for card in group})
        bound_s = lower_bound((attempt.duration_s or 0.0 for attempt in attempts), cards, map(len, held))
        return RoundReport(round_number, len(attempts), cards, makespan_s, bound_s)
