"""Predict a plan's makespan by simulating the workers' choice of batches with the expected durations of tests.

The prediction is for a first round without any crash. The lower bound for all schedules is in `accel_ci.plan.guided`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from accel_ci.plan.guided import COLLECT_S, Plan
from accel_ci.runner.choice import Choice, FreeBatches
from accel_ci.runner.round_folder import PlannedBatch


def predicted_makespan(plan: Plan, cards: int, setup_s: float | None = None) -> float:
    """Return the seconds from the start of the workers to the end of the last batch.

    `setup_s` is the time that a card spent on set-up and collection in an earlier build. If it is None, each file costs a
    worker `COLLECT_S`. Batches for several cards run after the others, as the driver runs them.
    """
    batches = [
        PlannedBatch(
            batch.id, batch.suite, batch.file, batch.tests, batch.estimate_s, batch.avoid_cards, place < plan.urgent
        )
        for place, batch in enumerate(plan.batches)
    ]
    widths = {batch.id: batch.cards for batch in plan.batches}
    phases = [[batch for batch in batches if widths[batch.id] == width] for width in sorted(set(widths.values()))]
    collect_s = COLLECT_S if setup_s is None else 0.0
    ends = [_end_of(phase, max(1, cards // widths[phase[0].id]), collect_s) for phase in phases]
    return sum(ends) + (setup_s or 0.0)


def _end_of(batches: Sequence[PlannedBatch], workers: int, collect_s: float) -> float:
    """Return the seconds until the last batch ends if each worker knows all claims."""
    free = FreeBatches(batches)
    choices = [Choice(free, 0) for _ in range(workers)]
    collected: list[set[str]] = [set() for _ in range(workers)]
    idle = [(0.0, worker) for worker in range(workers)]  # since when, in seconds
    end_s = 0.0
    while idle:
        clock, worker = heapq.heappop(idle)
        batch = choices[worker].next(collected[worker])
        if batch is None:
            continue
        free.remove(batch.id, str(worker))
        choices[worker].record(batch, True)
        clock += batch.estimate_s + (0.0 if batch.file in collected[worker] else collect_s)
        collected[worker].add(batch.file)
        end_s = max(end_s, clock)
        heapq.heappush(idle, (clock, worker))
    return end_s
