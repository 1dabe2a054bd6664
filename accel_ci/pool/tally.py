"""What the events of workers amount to: attempts, the health of cards, and times. No effects but the callback."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from accel_ci.model import FAILING_OUTCOMES, Attempt, CardReport, RoundReport
from accel_ci.plan.guided import lower_bound

TestKey = tuple[str, str]


@dataclass
class _Card:
    healthy: bool = True
    reason: str | None = None
    attempts: int = 0
    busy_s: float = 0.0
    setup_s: float = 0.0
    doubtful: list[int] = field(default_factory=list)  # failing attempts since the last healthy probe


class Tally:
    """Takes the events of all workers of a run, those of one card in the order in which they happened."""

    def __init__(self, cards: Sequence[str], on_attempt: Callable[[Attempt], None]) -> None:
        """Start with all cards taken for healthy."""
        self.attempts: list[Attempt] = []
        self.last_attempt = time.monotonic()
        self.last_event = time.monotonic()
        self._cards = {card: _Card() for card in cards}
        self._on_attempt = on_attempt
        self._done: defaultdict[int, set[TestKey]] = defaultdict(set)
        self._hosts: dict[tuple[int, str], str] = {}
        self._spans: dict[tuple[int, str], tuple[datetime, datetime]] = {}

    def take(self, round_number: int, worker: str, card: str | None, events: Iterable[Mapping[str, Any]]) -> None:
        """Take more events of a worker in; `card` is the worker's."""
        for event in events:
            self.last_event = time.monotonic()
            at = datetime.fromisoformat(event["at"])
            crew = (round_number, worker.partition("-")[0])
            self._spans[crew] = (self._spans.get(crew, (at, at))[0], at)
            kind = event["event"]
            if kind == "worker_started":
                self._hosts[round_number, worker] = event["host"]
            elif kind == "attempt":
                self._take_attempt(round_number, worker, card, event)
            elif kind == "probe":
                self._take_probe(event, card)
            elif kind == "child_started" and card in self._cards:
                self._cards[card].setup_s += event["setup_s"]
            elif kind == "collected" and card in self._cards:
                self._cards[card].setup_s += event["seconds"]

    def _take_attempt(self, round_number: int, worker: str, card: str | None, event: Mapping[str, Any]) -> None:
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
            host=self._hosts.get((round_number, worker)),
            worker=worker,
        )
        key = (attempt.suite, attempt.test)
        if key in self._done[round_number]:
            return
        self._done[round_number].add(key)
        if attempt.card in self._cards:
            state = self._cards[attempt.card]
            state.attempts += 1
            state.busy_s += attempt.duration_s or 0.0
            if attempt.outcome in FAILING_OUTCOMES:
                state.doubtful.append(len(self.attempts))
        self.attempts.append(attempt)
        self.last_attempt = time.monotonic()
        self._on_attempt(attempt)

    def _take_probe(self, event: Mapping[str, Any], name: str | None) -> None:
        if name not in self._cards:
            return
        card = self._cards[name]
        card.healthy, card.reason = event["healthy"], event["reason"]
        if not card.healthy:
            reason = f"card {name} is unhealthy: {card.reason}"
            for place in card.doubtful:
                self.attempts[place] = replace(self.attempts[place], infra=reason)
        card.doubtful.clear()

    def done(self, round_number: int) -> set[TestKey]:
        """The tests that have an attempt in the round."""
        return self._done[round_number]

    def healthy(self) -> list[str]:
        """The cards that no probe has found unhealthy last."""
        return [name for name, card in self._cards.items() if card.healthy]

    def span_s(self, round_number: int) -> float:
        """How long the workers of the round have been at it, without the time between two drivers."""
        return sum(
            (last - first).total_seconds() for (number, _), (first, last) in self._spans.items() if number == round_number
        )

    def card_reports(self) -> tuple[CardReport, ...]:
        """What each card did."""
        return tuple(
            CardReport(name, card.healthy, card.reason, card.attempts, card.busy_s, card.setup_s)
            for name, card in self._cards.items()
        )

    def round_report(self, round_number: int, makespan_s: float) -> RoundReport:
        """What a round did; its lower bound is of the measured durations and the cards that ran a test."""
        attempts = [attempt for attempt in self.attempts if attempt.round == round_number]
        cards = len({attempt.card for attempt in attempts})
        bound_s = lower_bound((attempt.duration_s or 0.0 for attempt in attempts), cards)
        return RoundReport(round_number, len(attempts), cards, makespan_s, bound_s)
