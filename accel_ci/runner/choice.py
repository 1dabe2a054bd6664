"""The batch that a worker tries to claim next: no clock, no files, so that simulations of plans decide as workers do.

Urgent batches (long and requeued ones) come first, in the order of the plan. After them a worker stays with the suite that
its child has collected, or else goes to the file with the most work left per worker. The cost of a choice grows with the
number of files, not of batches: other workers' claims are remembered, and only new ones are added.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from .round_folder import PlannedBatch

_File = tuple[str, str]
"""A suite, and one of its files."""

_SPREAD = 16  # after a lost claim a worker looks this many times as far down its order of batches
_LOSSES = 4
"""Lost claims in a row until a worker waits for other workers' claims; by then it has looked 16 ** 3 = 4,096 places down."""


class FreeBatches:
    """The batches without a known owner, and the number of workers at each file."""

    def __init__(self, batches: Iterable[PlannedBatch] = (), card: str | None = None) -> None:
        """Start with `batches`, except those that `card` has to avoid."""
        self._card = card
        self._batches: dict[str, PlannedBatch] = {}
        self._taken: set[str] = set()
        self._urgent: dict[str, PlannedBatch] = {}
        self._files: dict[_File, dict[str, PlannedBatch]] = {}
        self._left_s: dict[_File, float] = {}
        self._workers: dict[_File, int] = {}
        self._at: dict[str, _File] = {}
        self.add(batches)

    def add(self, batches: Iterable[PlannedBatch]) -> None:
        """Add batches of the plan, or requeued ones."""
        for batch in batches:
            self._batches[batch.id] = batch
            if batch.id in self._taken or self._card in batch.avoid_cards:
                continue
            if batch.urgent:
                self._urgent[batch.id] = batch
            else:
                file = batch.suite, batch.file
                self._files.setdefault(file, {})[batch.id] = batch
                self._left_s[file] = self._left_s.get(file, 0.0) + batch.estimate_s

    def update(self, taken: Mapping[str, str]) -> None:
        """Remove the batches that have an owner; `taken` is batch id to owner."""
        for name in taken.keys() - self._taken:
            self.remove(name, taken[name])

    def remove(self, name: str, owner: str) -> None:
        """Remove the batch of that name, which `owner` has claimed."""
        self._taken.add(name)
        if (batch := self._batches.get(name)) is None:
            return
        file = batch.suite, batch.file
        if not batch.urgent and (before := self._at.get(owner)) != file:
            self._at[owner] = file
            self._workers[file] = self._workers.get(file, 0) + 1
            if before is not None:
                self._workers[before] -= 1
        if self._urgent.pop(name, None) is None and self._files.get(file, {}).pop(name, None) is not None:
            self._left_s[file] -= batch.estimate_s
            if not self._files[file]:
                del self._files[file], self._left_s[file]

    @property
    def version(self) -> int:
        """A number that changes whenever a batch or a claim is added."""
        return len(self._batches) + len(self._taken)

    def urgent(self) -> Iterator[PlannedBatch]:
        """The urgent batches, in the order of the plan."""
        return iter(self._urgent.values())

    def at_hand(self, suite: str | None, last: _File | None) -> Iterator[PlannedBatch]:
        """The batches of the suite: first the `last` file, whose fixtures are set up, then by work left per worker."""
        files = [file for file in self._files if file[0] == suite]
        files.sort(key=lambda file: (file != last, -self._left_s[file] / max(1, self._workers.get(file, 0))))
        return (batch for file in files for batch in self._files[file].values())

    def elsewhere(self) -> Iterator[PlannedBatch]:
        """The first batch of the file with the most work left per worker, then the choice of each next worker that came."""
        workers = {file: self._workers.get(file, 0) + 1 for file in self._files}
        order = [(-left_s / workers[file], number, file) for number, (file, left_s) in enumerate(self._left_s.items())]
        heapq.heapify(order)
        unseen: dict[_File, Iterator[PlannedBatch]] = {}
        while order:
            _, number, file = order[0]
            batch = next(unseen.setdefault(file, iter(self._files[file].values())), None)
            if batch is None:
                heapq.heappop(order)
                continue
            yield batch
            workers[file] += 1
            heapq.heapreplace(order, (-self._left_s[file] / workers[file], number, file))


class Choice:
    """One worker's choice.

    A worker tries the best batch that it believes to be free. If another worker was faster, its knowledge is old or many
    workers start together. It then looks further down its order, 16 times as far with each loss, at a place given by its
    `rank`, so that a second or third try succeeds whatever the number of workers. It keeps that distance while claims are
    lost. After four losses in a row it waits to see other workers' claims: at least those that it lost to.
    """

    def __init__(self, free: FreeBatches, rank: int) -> None:
        """Choose from `free`, which workers with equal knowledge may share."""
        self._free, self._rank = free, rank
        self._spread, self._losses, self._version = 1, 0, 0
        self._last: _File | None = None
        self._tried: set[str] = set()

    def next(self, suite: str | None) -> PlannedBatch | None:
        """Return the batch to try, None when there is none now. `suite` is the one that the worker's child has collected."""
        if self._losses >= _LOSSES and self._version == self._free.version:
            return None
        self._version = self._free.version
        place = self._rank % self._spread
        urgent = self._first(place + 1, self._free.urgent())
        if place < len(urgent):
            return urgent[place]
        place -= len(urgent)
        at_hand = self._first(place + 1, self._free.at_hand(suite, self._last))
        found = at_hand or self._first(place + 1, self._free.elsewhere()) or urgent
        return found[place % len(found)] if found else None

    def _first(self, count: int, batches: Iterable[PlannedBatch]) -> list[PlannedBatch]:
        return list(islice((batch for batch in batches if batch.id not in self._tried), count))

    def record(self, batch: PlannedBatch, won: bool) -> None:
        """Record whether the last choice could be claimed; it is not tried again, even while its owner is unknown."""
        self._tried.add(batch.id)
        if won:
            self._last = batch.suite, batch.file
            if self._losses == 0:
                self._spread = max(1, self._spread // _SPREAD)
            self._losses = 0
        else:
            self._losses += 1
            self._spread = min(_SPREAD**_LOSSES, self._spread * _SPREAD)
