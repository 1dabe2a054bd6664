"""Claim batches for one worker: apply the choice of `choice.py` to the round's claims until one is won."""

from __future__ import annotations

from collections.abc import Collection

from .choice import Choice, FreeBatches
from .round import Round
from .round_folder import PlannedBatch


class Claimer:
    """Claims the batches of one worker."""

    def __init__(self, joined: Round) -> None:
        """Claim nothing yet."""
        self._round = joined
        self._free = FreeBatches(joined.plan.batches, joined.card)
        self._choice = Choice(self._free, joined.rank)

    def claim(self, collected: Collection[str]) -> PlannedBatch | None:
        """Claim the best free batch, None when there is none. `collected` are the files that the worker's child has."""
        self._free.add(self._round.requeued())
        while True:
            self._free.update(self._round.claims.taken())
            batch = self._choice.next(collected)
            if batch is None:
                return None
            won = self._round.claims.take(batch.id)
            self._choice.record(batch, won)
            if won:
                self._round.log.write("claimed", batch=batch.id, tests=len(batch.tests))
                return batch
