"""Predict a plan's makespan by simulating the workers' choice of batches with the expected durations of tests.

The prediction is for a first round without any crash. The lower bound for all schedules is in `accel_ci.plan.guided`.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

from accel_ci.plan.guided import COLLECT_S, Plan
from accel_ci.runner.choice import Choice, FreeBatches
from accel_ci.runner.round_folder import PlannedBatch


def predicted_makespan(plan: Plan, cards: int, setup_s: float | None = None) -> float:
    """Return the seconds from the start of the workers to the end of the last batch.

    `setup_s` is the time that a card spent on set-up and collection in an earlier build. If it is None, each suite costs a
    worker `COLLECT_S`. Batches for several cards run after the others, as the driver runs them.
    """
    phases: defaultdict[int, list[PlannedBatch]] = defaultdict(list)
    for place, batch in enumerate(plan.batches):
        known = batch.id, batch.suite, batch.file, batch.tests, batch.estimate_s, batch.avoid_cards
        phases[batch.cards].append(PlannedBatch(*known, place < plan.urgent))
    collect_s = COLLECT_S if setup_s is None else 0.0
    return sum(_end_of(phases[width], max(1, cards // width), collect_s) for width in sorted(phases)) + (setup_s or 0.0)


def _end_of(batches: Sequence[PlannedBatch], workers: int, collect_s: float) -> float:
    """Return the seconds until the last batch ends if each worker knows all claims."""
    free = FreeBatches(batches)
    choices = [Choice(free, 0) for _ in range(workers)]
    suites: list[str | None] = [None] * workers
    idle = [(0.0, worker) for worker in range(workers)]  # since when, in seconds
    end_s = 0.0
    while idle:
        clock, worker = heapq.heappop(idle)
        batch = choices[worker].next(suites[worker])
        if batch is None:
            continue
        free.remove(batch.id, str(worker))
        choices[worker].record(batch, True)
        clock += batch.estimate_s + (0.0 if batch.suite == suites[worker] else collect_s)
        suites[worker] = batch.suite
        end_s = max(end_s, clock)
        heapq.heappush(idle, (clock, worker))
    return end_s
