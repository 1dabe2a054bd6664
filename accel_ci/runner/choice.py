"""Which batch a worker should claim next: no clock, no files, so that simulations of plans decide as workers do.

Urgent batches (what may last long, what is requeued) go first, in the order of the plan. After them a worker stays with
the files that its child has collected, and else goes where most work is left per worker. Whatever a claim costs grows
with the number of files, not of batches: what is known of the others' claims is kept, and only news is taken in.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from .round_folder import PlannedBatch

_SPREAD = 16
"""After a lost claim a worker looks this many times as far down its order."""

_LOSSES = 4
"""So many claims are lost in a row before a worker waits for news; then it has looked as far as 16 ** 3 = 4,096 places."""


class Waiting:
    """The batches that nobody is known to have, and how many workers are at which file."""

    def __init__(self, batches: Iterable[PlannedBatch] = (), card: str | None = None) -> None:
        """Know of `batches`, less those that `card` is to avoid."""
        self._card = card
        self._batches: dict[str, PlannedBatch] = {}
        self._taken: set[str] = set()
        self._urgent: dict[str, PlannedBatch] = {}
        self._files: dict[str, dict[str, PlannedBatch]] = {}
        self._left_s: dict[str, float] = {}
        self._workers: dict[str, int] = {}
        self._at: dict[str, str] = {}
        self.add(batches)

    def add(self, batches: Iterable[PlannedBatch]) -> None:
        """Take more batches in, those of the plan or what the driver hands on."""
        for batch in batches:
            self._batches[batch.id] = batch
            if batch.id in self._taken or self._card in batch.avoid_cards:
                continue
            if batch.urgent:
                self._urgent[batch.id] = batch
            else:
                self._files.setdefault(batch.file, {})[batch.id] = batch
                self._left_s[batch.file] = self._left_s.get(batch.file, 0.0) + batch.estimate_s

    def learn(self, taken: Mapping[str, str]) -> None:
        """Take in who has what, batch id to owner."""
        for name in taken.keys() - self._taken:
            self.remove(name, taken[name])

    def remove(self, name: str, owner: str) -> None:
        """Take in that `owner` has a batch."""
        self._taken.add(name)
        batch = self._batches.get(name)
        if batch is None:
            return
        if not batch.urgent and (before := self._at.get(owner)) != batch.file:
            self._at[owner] = batch.file
            self._workers[batch.file] = self._workers.get(batch.file, 0) + 1
            if before is not None:
                self._workers[before] -= 1
        if self._urgent.pop(name, None) is None and self._files.get(batch.file, {}).pop(name, None) is not None:
            self._left_s[batch.file] -= batch.estimate_s
            if not self._files[batch.file]:
                del self._files[batch.file], self._left_s[batch.file]

    @property
    def news(self) -> int:
        """A number that changes with every batch and every claim that is taken in."""
        return len(self._batches) + len(self._taken)

    def urgent(self) -> Iterator[PlannedBatch]:
        """The urgent batches, in the order of the plan."""
        return iter(self._urgent.values())

    def at_hand(self, collected: Collection[str], last: str | None) -> Iterator[PlannedBatch]:
        """The batches of those files: of the `last` one, whose fixtures are set up, then where most is left per worker."""
        files = [file for file in collected if file in self._files]
        files.sort(key=lambda file: (file != last, -self._left_s[file] / max(1, self._workers.get(file, 0))))
        return (batch for file in files for batch in self._files[file].values())

    def elsewhere(self) -> Iterator[PlannedBatch]:
        """The first batch of the file where most is left per worker, then what another that came after it would take."""
        workers = {file: self._workers.get(file, 0) + 1 for file in self._files}
        order = [(-left_s / workers[file], number, file) for number, (file, left_s) in enumerate(self._left_s.items())]
        heapq.heapify(order)
        waiting: dict[str, Iterator[PlannedBatch]] = {}
        while order:
            _, number, file = order[0]
            batch = next(waiting.setdefault(file, iter(self._files[file].values())), None)
            if batch is None:
                heapq.heappop(order)
                continue
            yield batch
            workers[file] += 1
            heapq.heapreplace(order, (-self._left_s[file] / workers[file], number, file))


class Choice:
    """What one worker tries next.

    It tries the best batch that it knows to wait. When another was faster, what it knows is old, or many start together:
    it then looks further down its order, each time 16 times as far, at a place given by its `rank`, so that a second or
    third try succeeds however many try. It goes on looking as far while that is needed, and after four losses in a row
    it waits for news of the others' claims, of which there are at least those that it has met.
    """

    def __init__(self, waiting: Waiting, rank: int) -> None:
        """Choose from `waiting`, which workers that know the same may share."""
        self._waiting = waiting
        self._rank = rank
        self._spread = 1
        self._losses = 0
        self._news = 0
        self._last: str | None = None
        self._tried: set[str] = set()

    def next(self, collected: Collection[str]) -> PlannedBatch | None:
        """The batch to try, None when there is none now. `collected` are the files that the worker's child has."""
        if self._losses >= _LOSSES and self._news == self._waiting.news:
            return None
        self._news = self._waiting.news
        place = self._rank % self._spread
        urgent = self._first(place + 1, self._waiting.urgent())
        if place < len(urgent):
            return urgent[place]
        place -= len(urgent)
        at_hand = self._first(place + 1, self._waiting.at_hand(collected, self._last))
        found = at_hand or self._first(place + 1, self._waiting.elsewhere()) or urgent
        return found[place % len(found)] if found else None

    def _first(self, count: int, batches: Iterable[PlannedBatch]) -> list[PlannedBatch]:
        return list(islice((batch for batch in batches if batch.id not in self._tried), count))

    def note(self, batch: PlannedBatch, won: bool) -> None:
        """Take in whether the claim of the last choice was won; it is not tried again, also where news comes late."""
        self._tried.add(batch.id)
        if won:
            self._last = batch.file
            if self._losses == 0:
                self._spread = max(1, self._spread // _SPREAD)
            self._losses = 0
        else:
            self._losses += 1
            self._spread = min(_SPREAD**_LOSSES, self._spread * _SPREAD)
