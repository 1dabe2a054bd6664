"""Running the suites of a stage on the project's pool, from the selected tests to a manifest.

Here belongs what smoke and device tests share and where they differ: smoke takes one card, the device tests all of them.
How workers are driven is in `driver.py`.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from pydantic import TypeAdapter

from accel_ci.config.settings import Settings, Suite
from accel_ci.errors import PoolError
from accel_ci.instance.command_provider import CommandProvider
from accel_ci.instance.lease import LEASES, running_instance
from accel_ci.model import (
    OUTCOMES,
    Artifact,
    Attempt,
    Batch,
    DeviceTestResults,
    Limits,
    Outcome,
    SelectedTest,
    TestPlan,
    TestSelection,
    WorkerSpec,
)
from accel_ci.plan.guided import Plan, make_plan
from accel_ci.pool.choose_pool import pool_for
from accel_ci.progress import Step
from accel_ci.rounds.driver import PoolRun, run_rounds
from accel_ci.rounds.engine import cards_in
from accel_ci.scope.selection import read_selection, select_tests
from accel_ci.steps.plan import read_plan
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.file_lock import acquire_or_wait

_ATTEMPTS = TypeAdapter(list[Attempt])


@dataclass(frozen=True)
class StageContext:
    """Where a stage works: the runner as one file, the folder of its claims and events, the lock of the cards, the store.

    `run` names who asks for it, such as a Dagster run.
    """

    runner: Path
    folder: Path
    cards_lock: Path
    artifacts: ArtifactStore
    run: str = ""


def cards_of_suites(settings: Settings) -> dict[str, int]:
    """How many cards a test of each suite holds."""
    return {name: suite.cards for name, suite in settings.suites.items()}


def cards_of(settings: Settings) -> list[str]:
    """The names of the pool's cards."""
    return [str(number) for number in range(settings.pool.cards)]


def collect_tests(settings: Settings, suites: dict[str, Suite], spec: WorkerSpec, context: StageContext) -> TestSelection:
    """What is in scope of the suites, collected where the pool's workers run. Raises `SelectionError` and `PoolError`."""
    pool = pool_for(settings, context.run)
    return select_tests(
        suites, spec, context.runner, context.artifacts, pool.execute, timeout_s=settings.limits.startup_seconds
    )


def run_smoke_stage(
    settings: Settings,
    suites: dict[str, Suite],
    spec: WorkerSpec,
    context: StageContext,
    step: Step,
) -> DeviceTestResults:
    """Collect and run the smoke suites on one healthy card; nothing is run again, for smoke must not be flaky.

    A card that its health probe speaks against is passed over for the next one. Raises `PoolError` when all are, and
    `SelectionError` when there is nothing to run.
    """
    started = time.monotonic()
    selection = collect_tests(settings, suites, spec, context)
    plan = make_plan(read_selection(selection.tests, context.artifacts), {}, 1)
    step.total(selection.selected)
    reasons = []
    for card in cards_of(settings):
        run = _run(settings, plan, [card], spec, context, step, rounds=1)
        if run.cards[0].healthy:
            return _results(selection.tests, tuple(suites), run, started, context.artifacts)
        reasons.append(f"card {card}: {run.cards[0].reason}")
    raise PoolError(f"no card is healthy, so nothing was tested ({'; '.join(reasons)}); fix the cards or the health probe")


def run_device_stage(
    settings: Settings,
    selected: Artifact,
    suites: Sequence[str],
    plan: TestPlan,
    spec: WorkerSpec,
    context: StageContext,
    step: Step,
) -> DeviceTestResults:
    """Run the plan on all cards, and what failed once more.

    A run that was killed is taken up where it stopped when it is asked for again with the same plan. Tests that too few
    healthy cards were left for, and those whose workers were lost each time, have an attempt `not_run` with the pool's word.
    Raises `PoolError`.
    """
    started = time.monotonic()
    step.total(plan.tests)
    cards = cards_of(settings)
    batches = read_plan(plan.batches, context.artifacts)
    run = _run(settings, batches, cards, spec, context, step, rounds=settings.pool.rounds)
    healthy = sum(card.healthy for card in run.cards)
    if run.lost or healthy < max(batch.cards for batch in batches.batches):
        word = "; ".join(f"card {card.card}: {card.reason}" for card in run.cards if not card.healthy)
        seen = {(attempt.suite, attempt.test) for attempt in run.attempts}
        needed = {batch.suite: batch.cards for batch in batches.batches}
        lost = [
            _not_run(
                test,
                f"{needed[test.suite]} healthy card(s) are needed and {healthy} left ({word})"
                if needed[test.suite] > healthy
                else f"workers were lost before it had an outcome ({'; '.join(run.lost[-3:])})",
            )
            for test in read_selection(selected, context.artifacts)
            if (test.suite, test.test) not in seen and (needed[test.suite] > healthy or run.lost)
        ]
        run = replace(run, attempts=(*run.attempts, *lost))
    return _results(selected, tuple(suites), run, started, context.artifacts)


def run_in_order(
    settings: Settings, tests: Sequence[SelectedTest], card: str, spec: WorkerSpec, context: StageContext, step: Step
) -> PoolRun:
    """Run the tests on one card (or group of cards) in the order given, in one session while no test ends it, and once.

    A card that the pool has not any more is replaced by its first ones. Raises `PoolError`.
    """
    wanted = cards_in(card)
    there = cards_of(settings)
    cards = list(wanted) if set(wanted) <= set(there) else there[: len(wanted)]
    groups = groupby(tests, key=lambda test: (test.suite, test.file))
    batches = tuple(
        Batch(f"b{number:05d}", suite, file, tuple(test.test for test in of_file), 1.0, cards=len(cards))
        for number, ((suite, file), of_file) in enumerate(groups)
    )
    step.total(len(tests))
    return _run(settings, Plan(batches, len(batches), 0, 0.0, 0.0), cards, spec, context, step, rounds=1, resume=False)


def _run(
    settings: Settings,
    plan: Plan,
    cards: list[str],
    spec: WorkerSpec,
    context: StageContext,
    step: Step,
    *,
    rounds: int,
    resume: bool = True,
) -> PoolRun:
    """Drive the project's pool; the folder of a run that ended is kept beside as `<name>.last`, to be looked into.

    With `resume`, a run that was stopped in the folder is taken up.
    """
    limits = settings.limits
    last: dict[tuple[str, str], Outcome] = {}
    counts: Counter[Outcome] = Counter()

    def on_attempt(attempt: Attempt) -> None:
        before = last.get((attempt.suite, attempt.test))
        last[attempt.suite, attempt.test] = attempt.outcome
        counts[attempt.outcome] += 1
        if before is not None:
            counts[before] -= 1
        said = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
        (step.advance if before is None else step.note)(said)

    pool = pool_for(settings, context.run)
    of_cluster = settings.pool.kind == "kubernetes"  # it gives cards out itself, and the folder is one driver's alone
    lock = context.folder.with_name(f".{context.folder.name}.lock") if of_cluster else context.cards_lock
    kept = context.folder.with_name(f"{context.folder.name}.last")
    what = str(context.folder) if of_cluster else "the cards"
    with acquire_or_wait(lock, step.say, what), _instance_running(settings, context, step):
        if not resume:
            shutil.rmtree(context.folder, ignore_errors=True)
        run = run_rounds(
            pool,
            plan.batches,
            cards,
            spec,
            Limits(limits.test_timeout_seconds, limits.silence_seconds, limits.startup_seconds, limits.probe_seconds),
            context.folder,
            on_attempt,
            rounds,
            urgent=plan.urgent,
        )
        shutil.rmtree(kept, ignore_errors=True)
        context.folder.rename(kept)
        pool.forget(context.folder)
    return run


@contextmanager
def _instance_running(settings: Settings, context: StageContext, step: Step) -> Iterator[None]:
    """Have the pool's machine running, where it has one that is started for the tests."""
    instance = settings.pool.instance
    if instance is None:
        yield
        return
    provider = CommandProvider(instance.start, instance.pause, instance.ready, instance.ready_url, instance.timeout_seconds)
    with running_instance(
        provider,
        context.cards_lock.with_name(LEASES),
        lease_s=instance.lease_seconds,
        timeout_s=instance.timeout_seconds,
        note=step.say,
    ):
        yield


def _not_run(test: SelectedTest, word: str) -> Attempt:
    return Attempt(test.suite, test.test, 1, "not_run", None, None, word, None, None, None, None, infra=word)


def _results(
    expected: Artifact, suites: tuple[str, ...], run: PoolRun, started: float, artifacts: ArtifactStore
) -> DeviceTestResults:
    counts = Counter(attempt.outcome for attempt in run.attempts)
    return DeviceTestResults(
        expected,
        artifacts.put_bytes(_ATTEMPTS.dump_json(list(run.attempts)), "attempts.json"),
        suites,
        {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]},
        run.rounds,
        run.cards,
        run.makespan_s,
        run.lower_bound_s,
        round(time.monotonic() - started, 3),
    )
