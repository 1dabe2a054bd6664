"""The rounds of earlier plans in a run's folder: set aside, never deleted, and counted with those of the current plan.

A plan is only a schedule. Where another one takes its place, because durations, limits or the number of cards have changed,
the rounds so far are moved to `earlier-<k>/`. Their attempts stay valid, and only the tests without one are left to run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from accel_ci.model import Batch
from accel_ci.rounds.engine import Pool
from accel_ci.rounds.events import Event
from accel_ci.rounds.folder_round import FolderRound
from accel_ci.rounds.tally import Tally, TestKey
from accel_ci.runner.child_session import SESSION

_EARLIER = "earlier-"


def number_of(folder: Path) -> int:
    """The number of the round in a folder."""
    return int(folder.name.split("-")[1])


def set_aside(pool: Pool, run_dir: Path, least: int) -> None:
    """Move the rounds from number `least` on away, once their workers have ended. Raises `PoolError` if they do not."""
    target = run_dir / f"{_EARLIER}{1 + max(map(_place, run_dir.glob(f'{_EARLIER}*')), default=0)}"
    for folder in sorted(run_dir.glob("round-*"), key=lambda path: (number_of(path), path.name)):
        if number_of(folder) >= least:
            pool.end_round(folder)
            pool.open_round(folder).set_aside(target / folder.name)


class EarlierAttempts:
    """The attempts of a run's earlier plans, to be taken into a tally. `left_out` counts those of tests not selected now.

    `driver` is the highest number of a driver whose workers have been read, -1 without one: names of workers begin with it.
    """

    def __init__(self, run_dir: Path, batches: Iterable[Batch], tally: Tally) -> None:
        """`batches` have all tests that are selected."""
        self.left_out = 0
        self.driver = -1
        self._run_dir, self._tally = run_dir, tally
        self._selected = {(batch.suite, test) for batch in batches for test in batch.tests}
        self._suites = {suite for suite, _ in self._selected}
        self._phases: dict[str, int] = {}

    def take(self, least: int, most: int | None = None) -> None:
        """Take those of the rounds from `least` to `most`, by default to the last one, that have not been taken yet."""
        before = self._tally.attempts
        found = self._run_dir.glob(f"{_EARLIER}*/round-*")
        with self._tally.keeping_health():
            for folder in sorted(found, key=lambda path: (number_of(path), _place(path.parent), path.name)):
                phase = f"{folder.parent.name}/{folder.name}"
                if phase not in self._phases and least <= number_of(folder) and (most is None or number_of(folder) <= most):
                    self._phases[phase] = number_of(folder)
                    self._take(FolderRound(folder), number_of(folder), phase)
        self._tally.carried_over += self._tally.attempts - before

    def span_s(self, number: int) -> float:
        """The seconds for which workers of earlier plans worked on a round."""
        return sum(self._tally.span_s(phase) for phase, of_round in self._phases.items() if of_round == number)

    def has(self, number: int) -> bool:
        """Return whether an earlier plan had a round of that number."""
        return number in self._phases.values()

    def _take(self, record: FolderRound, number: int, phase: str) -> None:
        for worker in record.workers():
            self.driver = max(self.driver, driver_of(worker))
            self._tally.take(number, worker, None, self._of_selected(record.events(worker)), phase)
        for worker, attempt in record.charged():
            self._tally.take(number, worker, None, self._of_selected([attempt]), phase)

    def _of_selected(self, events: Iterable[Event]) -> list[Event]:
        return [each for each in events if each.event != "attempt" or self._is_selected(each.suite or "", each.test or "")]

    def _is_selected(self, suite: str, test: str) -> bool:
        selected = (suite, test) in self._selected or (test == SESSION and suite in self._suites)
        self.left_out += not selected
        return selected


def without(batches: Iterable[Batch], done: Collection[TestKey]) -> list[Batch]:
    """The batches without the tests that are `done`; a group stays whole while one of its tests is not."""
    left = []
    for batch in batches:
        tests = tuple(test for test in batch.tests if (batch.suite, test) not in done)
        if tests and (batch.group is not None or len(tests) == len(batch.tests)):
            left.append(batch)
        elif tests:
            left.append(replace(batch, tests=tests, estimate_s=batch.estimate_s * len(tests) / len(batch.tests)))
    return left


def driver_of(worker: str) -> int:
    """The number of the driver that a worker's name begins with."""
    return int(worker[1:].partition("-")[0])


def _place(folder: Path) -> int:
    return int(folder.name.removeprefix(_EARLIER))
