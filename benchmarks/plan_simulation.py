"""How near plans come to the bound that no schedule beats: `python -m benchmarks.plan_simulation [NIGHT.json …] [--json]`.

The planner, the choice of a worker and what the driver hands on are the real ones; simulated are the clock, the cards and the
claims. A night says what the planner may know and how long everything then takes (`benchmarks.nights`); without one, small ones are
drawn. A claim is decided half its time after the worker looked, so workers race. A card that dies takes its running test along.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from accel_ci.model import Batch, SelectedTest
from accel_ci.plan.guided import Plan, make_plan
from accel_ci.pool.driver import lost_batches
from accel_ci.runner.choice import Choice, Waiting
from accel_ci.runner.round_folder import PlannedBatch
from benchmarks.nights import Night, make_night

SUITE = "pytorch"
NOTICE_S = 2.0
"""After this time the driver has noticed that a card died."""

LONG_FILE_S = 600.0
"""PyTorch's continuous integration splits files that take longer."""


@dataclass
class Outcome:
    """What came of a night under one rule. `tried` claims were attempted and `claims` won; `collections` are worker and file."""

    makespan_s: float = 0.0
    claims: int = 0
    tried: int = 0
    collections: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """How often each test was run to its end."""


def names_of(night: Night) -> list[list[str]]:
    """The test ids of each file."""
    return [
        [f"test_{number:04}.py::test_{place}" for place in range(len(of_file))] for number, of_file in enumerate(night["files"])
    ]


def known_tests(night: Night) -> tuple[list[SelectedTest], dict[tuple[str, str], float]]:
    """All that a planner may know of the tests: which there are, and the recorded durations."""
    tests, durations = [], {}
    for names, recorded in zip(names_of(night), night["files"], strict=True):
        for name, duration in zip(names, recorded, strict=True):
            tests.append(SelectedTest(SUITE, name))
            if duration is not None:
                durations[SUITE, name] = duration
    return tests, durations


def plan_night(night: Night) -> Plan:
    """The real plan of a night."""
    tests, durations = known_tests(night)
    return make_plan(tests, durations, len(night["ready_s"]), collect_s=night["collect_s"])


@dataclass
class _Worker:
    choice: Choice
    waiting: Waiting
    ready_s: float
    dies_s: float
    collected: dict[str, None] = field(default_factory=dict)


class Simulation:
    """One night of a plan: workers claim, run and die by the clock of the night."""

    def __init__(self, night: Night, plan: Plan, publish_s: float = 0.0) -> None:
        """Prepare. Workers learn of the others' claims every `publish_s` seconds, or at once."""
        self.outcome = Outcome()
        self._claim_s, self._collect_s, self._publish_s = night["claim_s"], night["collect_s"], publish_s
        self._actual = {
            name: duration
            for names, actual in zip(names_of(night), night["actual"], strict=True)
            for name, duration in zip(names, actual, strict=True)
        }
        self._batches = list(plan.batches)
        self._planned = {batch.id: _planned(batch, place < plan.urgent) for place, batch in enumerate(plan.batches)}
        self._known = Waiting(self._planned.values())
        self._claimed: dict[str, str] = {}
        self._news: list[tuple[str, str]] = []
        self._living = {
            f"w{number}": _Worker(Choice(self._known, number), self._known, ready_s, float("inf") if dies_s is None else dies_s)
            for number, (ready_s, dies_s) in enumerate(zip(night["ready_s"], night["dies_s"], strict=True))
        }
        self._idle: list[str] = []
        self._open = {(SUITE, test) for test in self._actual}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def run(self) -> Outcome:
        """Run to the end of the last test."""
        for name, worker in self._living.items():
            self._at(min(worker.ready_s, worker.dies_s), self._look, name)
        if self._publish_s:
            self._at(self._publish_s, self._publish)
        while self._events:
            self._now, _, what, about = heapq.heappop(self._events)
            what(*about)
        return self.outcome

    def _at(self, time_s: float, what: Callable[..., None], *about: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (time_s, self._number, what, about))

    def _look(self, name: str) -> None:
        """A worker chooses, and its claim is on its way."""
        worker = self._living[name]
        if worker.dies_s <= self._now:
            self._at(self._now + NOTICE_S, self._notice, name)
            return
        batch = worker.choice.next(worker.collected)
        if batch is None:
            self._idle.append(name)
        else:
            self._at(self._now + self._claim_s, self._claim, name, batch)

    def _claim(self, name: str, batch: PlannedBatch) -> None:
        """The store decides a claim; who wins runs the batch."""
        worker = self._living[name]
        won = batch.id not in self._claimed
        self.outcome.tried += 1
        worker.choice.note(batch, won)
        if not won:
            self._look(name)
            return
        self.outcome.claims += 1
        self._claimed[batch.id] = name
        self._news.append((batch.id, name))
        if not self._publish_s:
            self._publish()
        clock = self._now
        if batch.file not in worker.collected:
            worker.collected[batch.file] = None
            self.outcome.collections += 1
            clock += self._collect_s
        for test in batch.tests:
            clock += self._actual[test]
            if clock > worker.dies_s:
                break
            self._open.discard((SUITE, test))
            self.outcome.ended[test] += 1
            self.outcome.makespan_s = max(self.outcome.makespan_s, clock)
        self._at(min(clock, worker.dies_s), self._look, name)

    def _publish(self) -> None:
        """All workers learn of the claims so far; those that had nothing to claim look again."""
        for batch, owner in self._news:
            self._known.remove(batch, owner)
        if self._publish_s:
            if self._news:
                self._wake()
            if self._events:
                self._at(self._now + self._publish_s, self._publish)
        self._news.clear()

    def _notice(self, name: str) -> None:
        """The driver hands on what a dead worker had."""
        del self._living[name]
        fresh = lost_batches(self._batches, self._claimed, self._open, {worker: worker for worker in self._living})
        for batch in fresh:
            self._number += 1
            handed_on = replace(batch, id=f"h{self._number}")
            self._batches.append(handed_on)
            self._known.add([_planned(handed_on, True)])
        if fresh:
            self._wake()

    def _wake(self) -> None:
        idle, self._idle = self._idle, []
        for name in idle:
            self._look(name)


def _planned(batch: Batch, urgent: bool) -> PlannedBatch:
    return PlannedBatch(batch.id, batch.suite, batch.file, batch.tests, batch.estimate_s, batch.avoid_cards, urgent)
