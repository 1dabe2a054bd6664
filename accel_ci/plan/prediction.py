"""How long a plan will take: the workers' own choice of batches, played through with what tests are expected to take.

Here belongs the makespan of a first round in which nothing breaks. What no schedule beats is `accel_ci.plan.guided`'s part.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from accel_ci.plan.guided import COLLECT_S, Plan
from accel_ci.runner.choice import Choice, Waiting
from accel_ci.runner.round_folder import PlannedBatch


def predicted_makespan(plan: Plan, cards: int, setup_s: float | None = None) -> float:
    """The seconds from the start of the workers to the end of the last batch.

    `setup_s` is what a card spent on set-up and collection in an earlier build. Where that is not known, each file that a
    worker touches is taken to cost it `COLLECT_S`. Batches for several cards run after the others, as the driver has it.
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
    """When the last batch ends, if each worker knows what the others have."""
    waiting = Waiting(batches)
    choices = [Choice(waiting, 0) for _ in range(workers)]
    collected: list[set[str]] = [set() for _ in range(workers)]
    free = [(0.0, worker) for worker in range(workers)]
    end_s = 0.0
    while free:
        clock, worker = heapq.heappop(free)
        batch = choices[worker].next(collected[worker])
        if batch is None:
            continue
        waiting.remove(batch.id, str(worker))
        choices[worker].note(batch, True)
        clock += batch.estimate_s + (0.0 if batch.file in collected[worker] else collect_s)
        collected[worker].add(batch.file)
        end_s = max(end_s, clock)
        heapq.heappush(free, (clock, worker))
    return end_s
