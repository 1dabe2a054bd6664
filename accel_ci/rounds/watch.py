"""Watch the workers of a round: charge the end or the silence of one to the test that it ran.

A worker records the start of each test before the test runs, so its last record names the test that was running when it
ended. A process can also be ended from outside, so that test is a suspect at first: it is run again, apart from others, and
only the second worker that ends while it runs makes it `crashed`. Silence beyond the limit of a test makes it `timeout`, and
a worker in quarantine (`accel_ci.rounds.admission`) makes it `crashed` at once. Where each file has its own process, a
file at whose import two workers end is charged in the same way; no card is taken for unfit because of it.
Starting and stopping workers belongs to the driver.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from accel_ci.model import Limits, Outcome
from accel_ci.rounds.engine import WorkerState
from accel_ci.rounds.events import Event
from accel_ci.rounds.folder_round import FolderRound
from accel_ci.rounds.tally import Tally, TestKey
from accel_ci.runner.round_folder import file_of

_GRACE_S = 20.0  # for a worker to end a test that is past its limit, and for its last event to come
_STEP_S = 1.0  # the most that counts between two looks: a driver that stalls uses up no limit
_FRUITLESS = 2  # workers in a row that ran no test on a card, after which no other is started on it


class WorkerWatch:
    """The workers of one phase of a round. `suspects` are the tests that were running when a worker ended."""

    def __init__(self, record: FolderRound, number: int, limits: Limits, tally: Tally) -> None:
        self.suspects: set[TestKey] = set()
        self._record, self._phase, self._number, self._tally = record, record.path.name, number, tally
        self._test_s = limits.test_timeout_s + _GRACE_S + record.lag_s
        self._other_s = max(limits.test_timeout_s, limits.silence_s, limits.startup_s, limits.probe_timeout_s)
        self._other_s += _GRACE_S + record.lag_s
        self._clock_s, self._looked = 0.0, time.monotonic()
        self._signs: dict[str, tuple[float, float]] = {}  # by worker: its last sign, and since when in `_clock_s`
        self._silent: dict[str, str] = {}
        self._deadly: set[tuple[str, str]] = set()  # suites and files at whose import a worker may have ended
        self._judged: set[str] = set()
        self._ended: set[str] = set()  # from the quarantine
        self._fruitless: Counter[str] = Counter()  # by card

    def to_end(self, workers: Iterable[str]) -> dict[str, str]:
        """Return those of the living workers that must be ended, with the reason: past a limit, or in quarantine."""
        now = time.monotonic()
        self._clock_s, self._looked = self._clock_s + min(_STEP_S, now - self._looked), now
        found = {}
        for worker in workers:
            if worker in self._record.quarantined and worker not in self._ended:
                self._ended.add(worker)
                found[worker] = f"is in quarantine: {self._record.quarantined[worker]}"
            sign = self._tally.last_sign(self._phase, worker)
            if sign is None:
                self._signs.pop(worker, None)
                continue
            known, since_s = self._signs.get(worker, (None, 0.0))
            limit_s = self._test_s if self._tally.is_testing(self._phase, worker) else self._other_s
            if sign != known:
                self._signs[worker] = sign, self._clock_s
            elif self._clock_s - since_s > limit_s:
                self._signs[worker] = sign, self._clock_s
                found[worker] = self._silent[worker] = f"gave no sign for {limit_s:.0f} s"
        return found

    def judge(self, workers: Sequence[WorkerState]) -> None:
        """Charge the tests that workers were running when they ended."""
        for worker in workers:
            if worker.end is not None and worker.name not in self._judged:
                self._judged.add(worker.name)
                self._judge(worker)

    def may_be_replaced(self, worker: WorkerState) -> bool:
        """Return False where workers end before they run a test."""
        return self._fruitless[worker.card] < _FRUITLESS

    def _judge(self, worker: WorkerState) -> None:
        start = self._tally.running(self._phase, worker.name)
        if start is None and self._judge_import(worker):
            return
        if start is not None or self._tally.attempts_of(self._phase, worker.name):
            self._fruitless.pop(worker.card, None)
        else:
            self._fruitless[worker.card] += 1
        if start is None or worker.end is None:
            return
        test = start.suite or "", start.test or ""
        if (reason := self._record.quarantined.get(worker.name)) is not None:
            self._charge(worker, start, "crashed", f"its worker was put in quarantine while it ran: {reason}")
        elif worker.name in self._silent:
            self._charge(worker, start, "timeout", f"its worker {self._silent[worker.name]} while it ran")
        elif not worker.end.may_be_by_a_test:
            return
        elif test in self.suspects:
            self._charge(worker, start, "crashed", f"two workers ended while it ran; the second: {worker.end}")
        else:
            self.suspects.add(test)

    def _judge_import(self, worker: WorkerState) -> bool:
        """Return whether a worker may have ended at the import of the file of its batch; charge the second such end."""
        end = worker.end
        if end is None or not (end.may_be_by_a_test or worker.name in self._silent):
            return False
        owners, isolated = self._record.claimed(), self._record.isolated_suites
        held = [each for each in self._record.batches() if each.suite in isolated and owners.get(each.id) == worker.name]
        left = self._tally.open_tests(held, self._number)
        for suite, test in sorted(left):
            file = suite, file_of(test)
            if file in self._deadly:
                start = Event("started", datetime.now(timezone.utc), suite, test)
                reason = self._record.quarantined.get(worker.name)
                how = f"was put in quarantine: {reason}" if reason else f"ended: {end}"
                self._charge(
                    worker, start, "crashed", f"two workers were lost while {file[1]} was imported; the second {how}"
                )
        self._deadly.update((suite, file_of(test)) for suite, test in left)
        return bool(left)

    def _charge(self, worker: WorkerState, start: Event, outcome: Outcome, message: str) -> None:
        attempt = Event(
            "attempt", datetime.now(timezone.utc), start.suite, start.test, outcome, start.at.isoformat(), message=message
        )
        self._record.charge(worker.name, attempt)
        self._tally.take(self._number, worker.name, worker.card, [attempt], self._phase)
