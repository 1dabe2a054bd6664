"""The driver: has a pool run a plan in rounds, whatever the pool's engine.

Here belongs what the driver decides: when a worker is replaced, which tests are requeued, when a round is over and
what goes into the next. It keeps nothing of its own; all it knows is in the run's folder, and a driver that starts
again on the folder of one that was killed goes on where that stopped.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from accel_ci.errors import PoolError
from accel_ci.model import Attempt, Batch, CardReport, Limits, RoundReport, SelectedTest, WorkerSpec
from accel_ci.plan.guided import make_plan
from accel_ci.rounds.bucket_sync import DRIVER
from accel_ci.rounds.engine import DRIVER_LOCK, ENDED_WELL, Pool, WorkerGroup, WorkerState, groups_of
from accel_ci.rounds.round_record import RoundRecord
from accel_ci.rounds.tally import OnProgress, Tally, TestKey

_POLL_S = 0.1
_MARGIN_S = 60.0
_LOOK_AGAIN_S = 10.0
"""How often open tests are looked for that nobody has: the last claim of a worker may become known after its end."""
_LOCK_PATIENCE_S = 2.0


@dataclass(frozen=True)
class PoolRun:
    """The result of a plan.

    `rows` (columns of `accel_ci.rounds.tally.ROWS`) has every attempt once, with `infra` set where the card was unhealthy;
    `not_run` has the tests without an attempt. `makespan_s` is the time from a round's start to its last attempt, summed
    over the rounds; `lower_bound_s` is of round 1. `lost` has a line for each worker that ended as it should not have.
    """

    rows: pa.Table
    rounds: tuple[RoundReport, ...]
    cards: tuple[CardReport, ...]
    makespan_s: float
    lower_bound_s: float
    not_run: tuple[TestKey, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The rows as objects: for runs of few tests."""
        return tuple(Attempt(**row) for row in self.rows.to_pylist())


def run_rounds(
    pool: Pool,
    batches: Sequence[Batch],
    cards: Sequence[str],
    spec: WorkerSpec,
    limits: Limits,
    run_dir: Path,
    on_progress: OnProgress,
    max_rounds: int = 2,
    *,
    urgent: int = 0,
) -> PoolRun:
    """Run all batches, then run again what failed or did not run, on other cards where there are any.

    The first `urgent` batches are taken first wherever a worker is. Batches for several cards run after those for one, in a
    phase of their own for each number of cards, with workers that hold groups of the healthy cards.

    `on_progress` hears of attempts as they come in, before anything is known of `infra`; on a folder where an equal plan was
    begun, first of those that are there already. A folder with another plan is replaced. Raises `PoolError` when no worker
    can run at all, when another driver is at work in the folder, and when ids of batches are not fit for file names.
    """
    _check(batches, cards)
    run_dir.mkdir(parents=True, exist_ok=True)
    with _sole_driver(run_dir):
        pool.clear(run_dir)
        tally = Tally(cards, batches, on_progress)
        reports: list[RoundReport] = []
        lost: list[str] = []
        for number in range(1, max_rounds + 1):
            todo = list(batches) if number == 1 else retries(batches, tally, number)
            if not todo or not tally.healthy():
                break
            makespan_s = 0.0
            for width in sorted({batch.cards for batch in todo}):
                phase = [batch for batch in todo if batch.cards == width]
                first = sum(batch.cards == width for batch in todo[:urgent]) if number == 1 else len(phase)
                record = pool.open_round(run_dir / (f"round-{number}" if width == 1 else f"round-{number}-cards-{width}"))
                if record.prepare(number, phase, spec, limits, first):
                    _remove_rounds_after(run_dir, number)
                makespan_s += _run_phase(pool, record, number, phase, spec, limits, tally, lost)
            reports.append(tally.round_report(number, makespan_s))
    return PoolRun(
        rows=tally.rows(),
        rounds=tuple(reports),
        cards=tally.card_reports(),
        makespan_s=sum(report.makespan_s for report in reports),
        lower_bound_s=reports[0].lower_bound_s if reports else 0.0,
        not_run=tuple(tally.not_run(batches)),
        lost=tuple(lost),
    )


def retries(batches: Sequence[Batch], tally: Tally, number: int) -> list[Batch]:
    """The batches of round `number`: tests whose last attempt failed or that have none, away from where they failed."""
    cards = tally.healthy()
    groups: dict[tuple[int, tuple[str, ...]], list[SelectedTest]] = {}
    for batch in batches:
        holders = groups_of(cards, batch.cards)
        for test in tally.to_retry(batch):
            avoid = tuple(holder for holder in holders if holder in tally.failed_on((batch.suite, test)))
            avoid = avoid if len(avoid) < len(holders) else ()
            groups.setdefault((batch.cards, avoid), []).append(SelectedTest(batch.suite, test))
    return [
        replace(batch, id=f"r{number}-{place}-{batch.id}", avoid_cards=avoid, cards=width)
        for place, ((width, avoid), tests) in enumerate(groups.items())
        for batch in make_plan(tests, tally.failure_durations(), max(1, len(cards) // width - len(avoid))).batches
    ]


def _run_phase(
    pool: Pool,
    record: RoundRecord,
    number: int,
    batches: Sequence[Batch],
    spec: WorkerSpec,
    limits: Limits,
    tally: Tally,
    lost: list[str],
) -> float:
    """Run the batches of a round for one number of cards to their end, or what is missing; gives back the seconds it took.

    Where too few cards are healthy for a single group, nothing is run. Words for workers that were lost are added to `lost`.
    """
    width, phase = batches[0].cards, record.path.name
    cards = tally.groups(width)
    record.await_old_workers()
    old = record.workers()
    _read_others(record, number, tally, ())
    makespan_s = record.finished()
    if makespan_s is None:
        makespan_s = tally.span_s(phase)
        usable = [card for card in cards if card in tally.groups(width)]
        if usable and tally.open_tests(batches, number):
            began = time.monotonic()
            driver = 1 + max((int(name[1:].partition("-")[0]) for name in old), default=-1)
            worker_group = pool.start(record.path, usable, spec, driver)
            try:
                _attend(worker_group, record, number, batches, limits, tally)
                lost += [
                    f"worker {worker.name} on card {worker.card}: {worker.ended}"
                    for worker in worker_group.workers()
                    if worker.ended is not None and worker.ended not in ENDED_WELL
                ]
            finally:
                worker_group.close()
            _read(worker_group, record, number, tally)
            _read_others(record, number, tally, [worker.name for worker in worker_group.workers()])
            makespan_s += max(0.0, tally.last_attempt - began)
        if not tally.attempts and tally.groups(width):
            said = "\n".join(filter(None, map(record.log, record.workers()[:1]))) or "it printed nothing"
            raise PoolError(f"no worker of the pool could run a test; the first one said: {said}")
        record.finish(makespan_s)
    return makespan_s


def _attend(
    worker_group: WorkerGroup,
    record: RoundRecord,
    number: int,
    batches: Sequence[Batch],
    limits: Limits,
    tally: Tally,
) -> None:
    """Follow a worker group until the round is over and its workers have ended, or have had the time to."""
    tally.last_event = time.monotonic()
    silence_s = limits.startup_s + limits.test_timeout_s + limits.silence_s + limits.probe_timeout_s + _MARGIN_S
    seen: dict[str, str] | None = None
    looked = 0.0
    replaced: set[str] = set()
    width, enough = batches[0].cards, tally.attempts + len(tally.open_tests(batches, number))
    while True:
        living = _read(worker_group, record, number, tally)
        if tally.attempts >= enough and not tally.open_tests(batches, number):
            break
        if living != seen or time.monotonic() - looked > _LOOK_AGAIN_S:
            lost = _lost_cards(worker_group.workers(), tally.groups(width), living.values(), replaced)
            if lost:
                for card, worker in lost.items():
                    replaced.add(card)
                    worker_group.replace(worker)
                continue
            if not living:
                break
            _requeue(record, tally.open_tests(batches, number), living)
            seen, looked = living, time.monotonic()
        elif time.monotonic() - tally.last_event > silence_s:
            for name in living:
                worker_group.stop(name)
            tally.last_event = time.monotonic()
        time.sleep(_POLL_S)
    record.end()
    deadline = time.monotonic() + limits.test_timeout_s + limits.probe_timeout_s + _MARGIN_S
    while _read(worker_group, record, number, tally) and time.monotonic() < deadline:
        time.sleep(_POLL_S / 2)


def _lost_cards(
    workers: Sequence[WorkerState], healthy: Collection[str], at_work: Collection[str], replaced: Collection[str]
) -> dict[str, str]:
    """Cards that nothing speaks against and that have lost their only worker, with that worker's name."""
    return {
        worker.card: worker.name
        for worker in workers
        if worker.ended is not None and worker.card in healthy and worker.card not in at_work and worker.card not in replaced
    }


def _read(worker_group: WorkerGroup, record: RoundRecord, number: int, tally: Tally) -> dict[str, str]:
    """Take in what workers have written; gives back the living ones with their cards.

    Whether a worker lives is asked before its events are read: of one that has ended, all are read.
    """
    workers = worker_group.workers()
    for worker in workers:
        tally.take(number, worker.name, worker.card, record.events(worker.name), record.path.name)
    return {worker.name: worker.card for worker in workers if worker.ended is None}


def _read_others(record: RoundRecord, number: int, tally: Tally, known: Collection[str]) -> None:
    """Take in what workers of earlier drivers have written, be it that the last of it came late."""
    for worker in record.workers():
        if worker not in known:
            tally.take(number, worker, None, record.events(worker), record.path.name)


def _requeue(record: RoundRecord, open_tests: set[TestKey], living: Mapping[str, str]) -> None:
    """Give out anew what `lost_batches` says; a free batch that all living cards are to avoid is taken back for it."""
    claimed, batches, cards = record.claimed(), record.batches(), set(living.values())
    for batch in batches:
        if batch.id not in claimed and cards <= set(batch.avoid_cards) and record.withdraw(batch.id):
            claimed[batch.id] = DRIVER
    record.requeue(lost_batches(batches, claimed, open_tests, living))


def lost_batches(
    batches: Sequence[Batch], claimed: Mapping[str, str], open_tests: Collection[TestKey], living: Mapping[str, str]
) -> list[Batch]:
    """The open tests that no free batch has and no living worker holds, as batches.

    `claimed` is batch id to owner, `living` worker to card. One of the living has to run a batch that all are to avoid.
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
    for batch in lost:
        tests = tuple(
            test for test in batch.tests if (batch.suite, test) in open_tests and (batch.suite, test) not in covered
        )
        if tests:
            covered.update((batch.suite, test) for test in tests)
            avoid = () if cards <= set(batch.avoid_cards) else batch.avoid_cards
            estimate_s = batch.estimate_s * len(tests) / len(batch.tests)
            fresh.append(replace(batch, tests=tests, estimate_s=estimate_s, avoid_cards=avoid))
    return fresh


def _check(batches: Sequence[Batch], cards: Sequence[str]) -> None:
    if not cards or len(set(cards)) != len(cards) or any("," in card for card in cards):
        raise PoolError(f"a pool needs cards with names of their own and without commas, not {list(cards)}")
    ids = [batch.id for batch in batches]
    unfit = [name for name in ids if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", name)]
    if unfit or len(set(ids)) != len(ids):
        raise PoolError(f"ids of batches must be unique and fit for file names: {unfit[:3] or 'one is there twice'}")


def _remove_rounds_after(run_dir: Path, number: int) -> None:
    for path in run_dir.glob("round-*"):
        if int(path.name.split("-")[1]) > number:
            shutil.rmtree(path)


@contextmanager
def _sole_driver(run_dir: Path) -> Iterator[None]:
    """Hold the run's folder for this driver."""
    path = run_dir / DRIVER_LOCK
    deadline = time.monotonic() + _LOCK_PATIENCE_S  # workers that wait for the end of a driver hold it for a moment
    while True:
        run_dir.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    said = f"another driver is at work in {run_dir}; wait for it or use another folder"
                    raise PoolError(said) from None
            else:
                if _is_at(path, lock):  # not one whose folder was moved away meanwhile, by the driver that had it
                    yield
                    return
        time.sleep(_POLL_S / 2)


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
