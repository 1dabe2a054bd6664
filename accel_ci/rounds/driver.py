"""The driver: runs a plan in rounds on a pool, whatever the pool's engine.

Here belong the driver's decisions: when to replace a worker, which tests to requeue, and when a round is over. What goes
into the next one is in `retries.py`. It keeps no state: all it knows is in the run's folder, so a driver that starts again
after a kill continues where the last one stopped.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from accel_ci.errors import PoolError
from accel_ci.model import Attempt, Batch, CardReport, Limits, RoundReport, SelectedTest, WorkerPod, WorkerSpec
from accel_ci.process.waiting import WaitLog, poll
from accel_ci.rounds.driver_lock import sole_driver
from accel_ci.rounds.earlier import EarlierAttempts, driver_of, number_of, set_aside, without
from accel_ci.rounds.engine import Pool, WorkerGroup
from accel_ci.rounds.folder_round import DRIVER, FolderRound
from accel_ci.rounds.retries import confirmations, repetitions, retries, retries_in_order
from accel_ci.rounds.tally import OnFailure, OnProgress, Tally, TestKey
from accel_ci.rounds.watch import WorkerWatch

_LOG = logging.getLogger(__name__)
_POLL_S = 0.1
_MARGIN_S = 60.0
_LOOK_AGAIN_S = 10.0
"""The interval of looks for open tests that nobody has: a worker's last claim may become known only after its end."""


@dataclass(frozen=True)
class PoolRun:
    """The result of a plan.

    `rows` (columns of `accel_ci.rounds.tally.ROWS`) has every attempt once, with `infra` set where the card was unhealthy;
    `not_run` has the tests without an attempt. `makespan_s` is the time from a round's start to its last attempt, summed
    over the rounds; `lower_bound_s` is of round 1. `lost` has a line for each worker that ended as it should not have.
    `carried_over` counts the attempts that were there already, from a run that was stopped, and `left_out` those of them
    whose tests are not selected any more. `offences` has a line for each time that tests wrote what cannot be true.
    `drivers` has the version of the cards' driver by host, where the health probe printed one. `pods` is the pool's to fill.
    """

    rows: pa.Table
    rounds: tuple[RoundReport, ...]
    cards: tuple[CardReport, ...]
    makespan_s: float
    lower_bound_s: float
    not_run: tuple[TestKey, ...] = ()
    lost: tuple[str, ...] = ()
    carried_over: int = 0
    left_out: int = 0
    offences: tuple[str, ...] = ()
    drivers: Mapping[str, str] = field(default_factory=dict)
    pods: tuple[WorkerPod, ...] = ()

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The rows as objects: for runs of few tests."""
        return tuple(Attempt(**row) for row in self.rows.to_pylist())


def run_rounds(
    pool: Pool, batches: Sequence[Batch], cards: Sequence[str], spec: WorkerSpec, limits: Limits, run_dir: Path,
    on_progress: OnProgress, max_rounds: int = 2, *, urgent: int = 0, tests: Sequence[SelectedTest] = (),
    times: Mapping[TestKey, int] | None = None, on_failure: OnFailure | None = None,
) -> PoolRun:  # fmt: skip
    """Run all batches, then rerun what failed or did not run, on other cards if there are any.

    A test that failed and was skipped when it ran again is run in one more round, after the tests before it in its file. For
    that, `tests` has all tests in the order of their collection. A last round confirms the flakes. With `times`, each test
    runs so often instead, once a round and in `max_rounds` at most, whatever comes of it.

    Workers take the first `urgent` batches before all others. Batches for several cards run after those for one card, in a
    separate phase for each number of cards, with workers that hold groups of the healthy cards.

    `on_progress` is called with attempts as they arrive, before `infra` is known. In a folder with an equal plan it is first
    called for the attempts found there. So is `on_failure`, with each test that fails. Rounds with another plan are set
    aside (`accel_ci.rounds.earlier`): their attempts count, and only the tests without one are run. Raises `PoolError` when
    no worker can run at all, when another driver is at work in the folder, and when batch ids cannot be file names.
    """
    _check(batches, cards)
    run_dir.mkdir(parents=True, exist_ok=True)
    with sole_driver(run_dir):
        pool.clear(run_dir)
        tally = Tally(cards, batches, on_progress, on_failure)
        earlier = EarlierAttempts(run_dir, batches, tally)
        reports: list[RoundReport] = []
        offences: list[str] = []
        first = {batch.id for batch in batches[:urgent]}
        for number in range(1, max_rounds + 3):
            earlier.take(number, number)
            phases = _phases_of(number, max_rounds, batches, tests, tally, first, times)
            if not _are_planned(pool, run_dir, number, phases, spec, limits):
                set_aside(pool, run_dir, number)
                earlier.take(number, number)
                phases = _phases_of(number, max_rounds, batches, tests, tally, first, times)
            if not tally.healthy():
                break
            makespan_s = earlier.span_s(number)
            for phase in phases:
                record = pool.open_round(run_dir / phase.folder)
                record.prepare(number, phase.batches, spec, limits, phase.urgent)
                makespan_s += _run_phase(pool, record, number, phase.batches, spec, limits, tally, earlier.driver)
                offences += [
                    *record.offences,
                    *(f"worker {name} is in quarantine: {reason}" for name, reason in record.quarantined.items()),
                ]
            if phases or earlier.has(number):
                reports.append(tally.round_report(number, makespan_s))
        set_aside(pool, run_dir, max_rounds + 3)
        earlier.take(1)
    return PoolRun(
        tally.rows(), tuple(reports), tally.card_reports(), makespan_s=sum(report.makespan_s for report in reports),
        lower_bound_s=reports[0].lower_bound_s if reports else 0.0, not_run=tuple(tally.not_run(batches)),
        lost=tuple(tally.lost), carried_over=tally.carried_over, left_out=earlier.left_out,
        offences=tuple(offences), drivers=tally.drivers,
    )  # fmt: skip


@dataclass(frozen=True)
class _Phase:
    """The batches of a round for one number of cards; workers take the first `urgent` ones before all others."""

    folder: str
    batches: list[Batch]
    urgent: int


def _phases_of(
    number: int,
    max_rounds: int,
    batches: Sequence[Batch],
    tests: Sequence[SelectedTest],
    tally: Tally,
    first: set[str],
    times: Mapping[TestKey, int] | None,
) -> list[_Phase]:
    """The phases of round `number`, by their numbers of cards; in round 1 the batches with ids in `first` are urgent."""
    todo = _batches_of(number, max_rounds, batches, tests, tally, times)
    phases = []
    for width in sorted({batch.cards for batch in todo}):
        own = [batch for batch in todo if batch.cards == width]
        urgent = sum(batch.id in first for batch in own) if number == 1 else len(own)
        phases.append(_Phase(f"round-{number}" if width == 1 else f"round-{number}-cards-{width}", own, urgent))
    return phases


def _are_planned(pool: Pool, run_dir: Path, number: int, phases: Sequence[_Phase], spec: WorkerSpec, limits: Limits) -> bool:
    """Return whether each folder of round `number` has the plan of one of its phases."""
    planned = {phase.folder: phase for phase in phases}
    for folder in run_dir.glob("round-*"):
        if number_of(folder) != number:
            continue
        phase = planned.get(folder.name)
        if phase is None or not pool.open_round(folder).has_plan(number, phase.batches, spec, limits, phase.urgent):
            return False
    return True


def _batches_of(
    number: int,
    max_rounds: int,
    batches: Sequence[Batch],
    tests: Sequence[SelectedTest],
    tally: Tally,
    times: Mapping[TestKey, int] | None,
) -> list[Batch]:
    """The batches of round `number`; after the last, one is for tests that need others, and one confirms flakes."""
    if number == 1:
        attempted = {(batch.suite, test) for batch in batches for test in batch.tests} - tally.open_tests(batches, number)
        return without(batches, attempted)
    if times is not None:
        return repetitions(batches, tally, number, times) if number <= max_rounds else []
    if number <= max_rounds:
        return retries(batches, tally, number)
    if max_rounds == 1:
        return []
    return (retries_in_order if number == max_rounds + 1 else confirmations)(batches, tests, tally, number)


def _run_phase(
    pool: Pool, record: FolderRound, number: int, batches: Sequence[Batch], spec: WorkerSpec, limits: Limits, tally: Tally,
    last_driver: int,
) -> float:  # fmt: skip
    """Run what is open of a round's batches for one number of cards, if so many are healthy; return the makespan in s.

    `last_driver` is the highest number of a driver of an earlier plan.
    """
    width, phase = batches[0].cards, record.path.name
    cards = tally.groups(width)
    record.await_old_workers()
    old = record.workers()
    before = tally.attempts
    _read_others(record, number, tally, ())
    tally.carried_over += tally.attempts - before
    for worker, attempt in record.charged():
        tally.take(number, worker, None, [attempt], phase)
    if (makespan_s := record.finished()) is not None:
        pool.end_round(record.path)
    else:
        makespan_s = tally.span_s(phase)
        usable = [card for card in cards if card in tally.groups(width)]
        if usable and tally.open_tests(batches, number):
            began = time.monotonic()
            driver = 1 + max(map(driver_of, old), default=last_driver)
            worker_group = pool.start(record, usable, spec, driver)
            try:
                _attend(worker_group, record, number, batches, limits, tally)
                tally.lost += [
                    f"worker {worker.name} on card {worker.card}: {worker.end.detail}"
                    for worker in worker_group.workers()
                    if worker.end is not None and worker.end.is_loss
                ]
            finally:
                worker_group.close()
            _read(worker_group, record, number, tally)
            _read_others(record, number, tally, [worker.name for worker in worker_group.workers()])
            makespan_s += max(0.0, tally.last_attempt - began)
        else:
            pool.end_round(record.path)
        if not tally.attempts and tally.groups(width):
            printed = "\n".join(filter(None, map(record.log, record.workers()[:1]))) or "(nothing)"
            raise PoolError(f"no worker of the pool could run a test; the first one printed: {printed}")
        record.finish(makespan_s)
    return makespan_s


def _attend(
    worker_group: WorkerGroup, record: FolderRound, number: int, batches: Sequence[Batch], limits: Limits, tally: Tally
) -> None:
    """Follow a worker group until the round is over and its workers have ended or have had time to."""
    began = tally.last_event = time.monotonic()
    wait = WaitLog(_LOG, f"the first news of {len(worker_group.workers())} worker(s) in {record.path}")
    silence_s = limits.startup_s + limits.test_timeout_s + limits.silence_s + limits.probe_timeout_s + _MARGIN_S
    watch = WorkerWatch(record, number, limits, tally)
    seen: dict[str, str] | None = None
    looked = 0.0
    width, enough = batches[0].cards, tally.attempts + len(tally.open_tests(batches, number))
    while True:
        living = _read(worker_group, record, number, tally)
        workers = worker_group.workers()
        watch.judge([worker for worker in workers if worker.name not in living])
        if tally.attempts >= enough and not tally.open_tests(batches, number):
            break
        if tally.last_event == began:
            wait.still_waiting()
        for name, reason in watch.to_end(living).items():
            _LOG.warning("worker %s %s; ending it", name, reason)
            worker_group.stop(name)
        if living != seen or time.monotonic() - looked > _LOOK_AGAIN_S:
            missing = set(tally.groups(width)) - set(living.values())  # cards
            newest = {worker.card: worker for worker in workers if worker.card in missing and worker.end is not None}
            lost = [worker for worker in newest.values() if watch.may_be_replaced(worker)]
            for worker in lost:
                _LOG.warning("worker %s on card %s ended (%s); starting another", worker.name, worker.card, worker.end)
                worker_group.replace(worker.name)
            if lost:
                continue
            if not living:
                break
            _requeue(record, tally.open_tests(batches, number), living, watch.suspects)
            seen, looked = living, time.monotonic()
        elif time.monotonic() - tally.last_event > silence_s:
            _LOG.warning("no news for %.0f s; stopping %s", silence_s, ", ".join(living))
            for name in living:
                worker_group.stop(name)
            tally.last_event = time.monotonic()
        time.sleep(_POLL_S)
    record.end()
    limit_s = limits.test_timeout_s + limits.probe_timeout_s + _MARGIN_S
    for _ in poll(_LOG, f"the workers in {record.path} to end", _POLL_S / 2, limit_s):
        if not _read(worker_group, record, number, tally):
            break


def _read(worker_group: WorkerGroup, record: FolderRound, number: int, tally: Tally) -> dict[str, str]:
    """Read what workers have written; return the cards of the living ones, by name."""
    workers = worker_group.workers()  # before their events, so that all events of an ended one are read
    for worker in workers:
        tally.take(number, worker.name, worker.card, record.events(worker.name), record.path.name)
    return {worker.name: worker.card for worker in workers if worker.end is None}


def _read_others(record: FolderRound, number: int, tally: Tally, known: Collection[str]) -> None:
    """Read what workers of earlier drivers have written, including events that arrived late."""
    for worker in record.workers():
        if worker not in known:
            tally.take(number, worker, None, record.events(worker), record.path.name)


def _requeue(
    record: FolderRound, open_tests: set[TestKey], living: Mapping[str, str], suspects: Collection[TestKey]
) -> None:
    """Hand out `lost_batches` again, after withdrawing free batches that all living cards must avoid."""
    claimed, batches, cards = record.claimed(), record.batches(), set(living.values())
    for batch in batches:
        if batch.id not in claimed and cards <= set(batch.avoid_cards) and record.withdraw(batch.id):
            claimed[batch.id] = DRIVER
    if requeued := record.requeue(lost_batches(batches, claimed, open_tests, living, suspects)):
        _LOG.warning("requeued %d test(s) that no living worker has", sum(len(batch.tests) for batch in requeued))


def lost_batches(
    batches: Sequence[Batch],
    claimed: Mapping[str, str],
    open_tests: Collection[TestKey],
    living: Mapping[str, str],
    suspects: Collection[TestKey] = (),
) -> list[Batch]:
    """The open tests that are in no free batch and in none of a living worker, as batches.

    Of a group, all its tests; otherwise each suspect alone, at the end.

    `claimed` is batch id to owner, `living` worker to card. Where all living cards should be avoided, none is.
    """
    cards = set(living.values())
    lost = [batch for batch in batches if batch.id in claimed and claimed[batch.id] not in living]
    files = {batch.file for batch in lost}
    covered = {
        (batch.suite, test)
        for batch in batches
        if batch.file in files and (batch.id not in claimed or claimed[batch.id] in living)
        for test in batch.tests
    }
    fresh: list[Batch] = []
    apart: list[Batch] = []
    for batch in lost:
        tests = tuple(test for test in batch.tests if (key := (batch.suite, test)) in open_tests and key not in covered)
        avoid = () if cards <= set(batch.avoid_cards) else batch.avoid_cards
        alone = () if batch.group is not None else tuple(test for test in tests if (batch.suite, test) in suspects)
        together = batch.tests if batch.group is not None and tests else tuple(test for test in tests if test not in alone)
        covered.update((batch.suite, test) for test in (*tests, *together))
        for part in (together, *((test,) for test in alone)):
            if part:
                estimate_s = batch.estimate_s * len(part) / len(batch.tests)
                again = replace(batch, tests=part, estimate_s=estimate_s, avoid_cards=avoid)
                (fresh if part is together else apart).append(again)
    return fresh + apart


def _check(batches: Sequence[Batch], cards: Sequence[str]) -> None:
    if not cards or len(set(cards)) != len(cards) or any("," in card for card in cards):
        raise PoolError(f"a pool needs cards with unique names and without commas, not {list(cards)}")
    ids = [batch.id for batch in batches]
    unfit = [name for name in ids if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", name)]
    if unfit or len(set(ids)) != len(ids):
        raise PoolError(f"batch ids must be unique and usable as file names: {unfit[:3] or 'one is there twice'}")
