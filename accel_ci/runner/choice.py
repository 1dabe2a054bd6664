"""Which batch a worker should claim next: a pure function, used by workers and by simulations of plans.

Urgent batches (never-seen and very long tests, what is handed on) go first, in the order of the plan. After them a
worker stays with the files that its child has collected, and else goes where most work is left per worker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .round_folder import PlannedBatch


def choose(
    batches: Sequence[PlannedBatch],
    taken: Mapping[str, str],
    card: str,
    collected: Collection[str],
    rank: int = 0,
) -> PlannedBatch | None:
    """The batch that a worker on `card` should try, None when there is none for it.

    `taken` is batch id to owner, `collected` are the files that the worker's child has collected. Workers that start
    together pass their `rank` at their first choice: each supposes that those before it have chosen, and so they do
    not all try the same.
    """
    free = [batch for batch in batches if batch.id not in taken and card not in batch.avoid_cards]
    if not free:
        return None
    rank %= len(free)
    urgent = [batch for batch in free if batch.urgent]
    if rank < len(urgent):
        return urgent[rank]
    for batch in free:
        if batch.file in collected and not batch.urgent:
            return batch
    return _where_most_is_left([batch for batch in free if not batch.urgent], batches, taken, places=rank - len(urgent) + 1)


def _where_most_is_left(
    free: Sequence[PlannedBatch], batches: Sequence[PlannedBatch], taken: Mapping[str, str], places: int
) -> PlannedBatch:
    waiting: dict[str, list[PlannedBatch]] = {}
    for batch in free:
        waiting.setdefault(batch.file, []).append(batch)
    left = {file: sum(batch.estimate_s for batch in of_file) for file, of_file in waiting.items()}
    owners: dict[str, set[str]] = {file: set() for file in waiting}
    for batch in batches:
        if batch.id in taken and not batch.urgent and batch.file in owners:
            owners[batch.file].add(taken[batch.id])
    workers = {file: len(names) for file, names in owners.items()}
    chosen = free[0]
    for _ in range(places):
        file = max(waiting, key=lambda name: left[name] / (workers[name] + 1))
        chosen = waiting[file].pop(0)
        left[file] -= chosen.estimate_s
        workers[file] += 1
        if not waiting[file]:
            del waiting[file]
    return chosen
