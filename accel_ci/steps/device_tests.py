"""Collecting, planning and running the suites of a stage on the project's pool, from the sources to manifests.

Here belongs what smoke and device tests share and where they differ: smoke takes one card, the device tests all of them.
How workers are driven is in `accel_ci.rounds.driver`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from itertools import groupby
from pathlib import Path

import pyarrow as pa
from pydantic import TypeAdapter

from accel_ci.config.settings import Settings, Suite
from accel_ci.errors import AccelCiError, PoolError, SelectionError
from accel_ci.images.runtime_image import changes_of_environment
from accel_ci.instance.command_provider import CommandProvider
from accel_ci.instance.lease import LEASES, running_instance
from accel_ci.model import (
    OUTCOMES,
    Artifact,
    Batch,
    Build,
    DeviceTestResults,
    Limits,
    Outcome,
    RuntimeImage,
    SelectedTest,
    TestPlan,
    TestSelection,
    WorkerSpec,
)
from accel_ci.plan.guided import Plan, make_plan
from accel_ci.plan.prediction import predicted_makespan
from accel_ci.pool.choose_pool import pool_for
from accel_ci.pool.project_pool import ProjectPool
from accel_ci.progress import Step
from accel_ci.results.columns import counts_of, kernels
from accel_ci.results.rows import from_report
from accel_ci.results.store import ResultsStore
from accel_ci.rounds.driver import PoolRun, run_rounds
from accel_ci.rounds.driver_lock import sole_driver
from accel_ci.rounds.engine import cards_in, groups_of
from accel_ci.rounds.retries import cards_to_avoid
from accel_ci.rounds.tally import ROWS, OnFailure, TestKey
from accel_ci.scope.each_file import CollectionCache
from accel_ci.scope.modes import with_modes
from accel_ci.scope.selection import read_selection, select_tests
from accel_ci.source.checkout import changes_of_checkout
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.file_lock import acquire_or_wait
from accel_ci.storage.redacted_folder import redact_folder

_PLAN = TypeAdapter(Plan)
_CONTENT = "content"  # in the folder of a run: the digest of what its attempts tested
_OFFENCES_SHOWN = 20
_UNFINISHED = "plan.json"  # in the folder of a run until it is stored
_UNFINISHED_PLAN = TypeAdapter(tuple[str, TestPlan])  # with the digest of the selected tests


@dataclass(frozen=True)
class StageContext:
    """The folders in which a stage of a build works, and the stores for its results.

    `runner` is the runner as one file, `folder` that of its claims and events, `cards_lock` the lock of the cards. `day` is
    the revision's, and `run` names who asks for it, such as a Dagster run. `content` is the digest of the image and the
    sources that are tested: attempts of other ones are not taken up. `collections` are those of earlier builds. Unless it is
    `with_cards`, the stage takes none.
    """

    build: Build
    day: date
    runner: Path
    folder: Path
    cards_lock: Path
    artifacts: ArtifactStore
    results: ResultsStore
    run: str = ""
    content: str = ""
    collections: CollectionCache | None = None
    with_cards: bool = True


def cards_of(settings: Settings) -> list[str]:
    """The names of the pool's cards."""
    return [str(number) for number in range(settings.pool.cards)]


def collect_tests(
    settings: Settings, suites: dict[str, Suite], spec: WorkerSpec, context: StageContext, *, none_enabled: bool = False
) -> TestSelection:
    """Collect the tests in scope of the suites where the pool's workers run. Raises `SelectionError`, `PoolError`.

    With `none_enabled`, all tests of a suite may wait to be enabled.
    """
    pool = pool_for(settings, context.run, with_cards=context.with_cards)
    timeout_s, caches = settings.limits.startup_seconds, context.collections
    return select_tests(
        suites, spec, context.runner, context.artifacts, pool.execute, timeout_s, caches, none_enabled=none_enabled
    )


def plan_device_tests(
    settings: Settings,
    selection: TestSelection,
    durations: Mapping[tuple[str, str], float],
    artifacts: ArtifactStore,
    setup_s: float | None = None,
    first_estimates: Mapping[tuple[str, str], float] | None = None,
    failed_on: Mapping[TestKey, Collection[str]] | None = None,
    first: Collection[TestKey] = (),
) -> TestPlan:
    """Plan the selected tests for the pool's cards from recorded `durations` (seconds by suite and test).

    `first_estimates` are for the tests of files that have none (seconds by suite and file). `setup_s` is the time that
    a card spent on set-up and collection in an earlier build. Tests keep away from the cards that they have `failed_on`,
    if there are others. Those in `first` come before the others. Raises `SelectionError` if nothing is selected.
    """
    cards, widths = settings.pool.cards, {name: suite.cards for name, suite in settings.suites.items()}
    tests = read_selection(selection.tests, artifacts)
    if not tests:
        raise SelectionError("nothing is selected, so there is nothing to plan; look at the suites of the job")
    make = partial(make_plan, durations=durations, cards=cards, widths=widths, first_estimates=first_estimates, first=first)
    plan = make(tests) if failed_on is None else _plan_away(tests, failed_on, settings, make)
    batches = artifacts.put_bytes(_PLAN.dump_json(plan), "plan.json")
    seconds = (round(each, 3) for each in (plan.estimated_s, plan.lower_bound_s, predicted_makespan(plan, cards, setup_s)))
    return TestPlan(batches, len(plan.batches), len(tests), plan.unknown, cards, *seconds)


def _plan_away(
    tests: Sequence[SelectedTest],
    failed_on: Mapping[TestKey, Collection[str]],
    settings: Settings,
    make: Callable[[Sequence[SelectedTest]], Plan],
) -> Plan:
    """Make a plan in which tests, or groups of tests, avoid the cards on which they have failed."""
    failed: defaultdict[TestKey, set[str]] = defaultdict(set)
    for test in tests:
        failed[test.suite, test.group or test.test].update(failed_on.get((test.suite, test.test), ()))
    parts: defaultdict[tuple[str, ...], list[SelectedTest]] = defaultdict(list)
    for test in tests:
        holders = groups_of(cards_of(settings), settings.suites[test.suite].cards)
        parts[cards_to_avoid(holders, failed[test.suite, test.group or test.test])].append(test)
    plans = {avoid: make(part) for avoid, part in sorted(parts.items())}
    batches = tuple(
        replace(batch, id=f"a{place}-{batch.id}", avoid_cards=avoid)
        for place, (avoid, plan) in enumerate(plans.items())
        for batch in plan.batches
    )
    estimated_s, unknown = sum(plan.estimated_s for plan in plans.values()), sum(plan.unknown for plan in plans.values())
    bound_s = max(estimated_s / settings.pool.cards, *(plan.lower_bound_s for plan in plans.values()))
    return Plan(batches, len(batches), unknown, estimated_s, bound_s)


def unfinished_plan(settings: Settings, selection: TestSelection, folder: Path) -> TestPlan | None:
    """The plan of the same tests and cards that a run in the folder has not finished; None when there is none.

    A plan that was made anew, from the durations that are known by now, would have all tests run again.
    """
    try:
        tests, plan = _UNFINISHED_PLAN.validate_json((folder / _UNFINISHED).read_bytes())
    except (OSError, ValueError):
        return None
    return plan if (tests, plan.cards) == (selection.tests.sha256, settings.pool.cards) else None


def read_plan(artifact: Artifact, artifacts: ArtifactStore) -> Plan:
    """The plan behind a manifest."""
    return _PLAN.validate_json(artifacts.checked_path(artifact).read_bytes())


def run_smoke_stage(
    settings: Settings, suites: dict[str, Suite], spec: WorkerSpec, context: StageContext, step: Step
) -> DeviceTestResults:
    """Collect and run the smoke suites on one healthy card; nothing is run again, for smoke must not be flaky.

    A card that fails its health probe is passed over for the next one. Raises `PoolError` when all are, and
    `SelectionError` when there is nothing to run.
    """
    started = time.monotonic()
    selection = collect_tests(settings, suites, spec, context)
    spec = with_modes(spec, selection.scope, context.artifacts)
    plan = make_plan(read_selection(selection.tests, context.artifacts), {}, 1)
    step.total(selection.selected)
    reasons = []
    for card in cards_of(settings):
        with driven_rounds(settings, plan, [card], spec, context, step, rounds=1) as run:
            if run.cards[0].healthy:
                results = store_attempts(selection.tests, tuple(suites), run, plan, started, context)
                return replace(results, selections=selection.suites)
        retire_rounds(settings, context.folder)
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
    times: Mapping[TestKey, int] | None = None,
    on_failure: OnFailure | None = None,
) -> DeviceTestResults:
    """Run the plan on all cards, and what failed once more (`accel_ci.rounds.retries`); with `times`, each test so often.

    A run that was killed is taken up where it stopped when it is asked for again, with whatever plan. Tests that too few
    healthy cards were left for, and those whose workers were lost each time, have an attempt `not_run` with the
    pool's reason. `on_failure` is called with each test that fails, at once. The rounds stay open until `retire_rounds`.
    Raises `PoolError`.
    """
    started = time.monotonic()
    step.total(plan.tests)
    cards = cards_of(settings)
    unfinished = _UNFINISHED_PLAN.dump_json((selected.sha256, plan))
    batches = read_plan(plan.batches, context.artifacts)
    tests = read_selection(selected, context.artifacts)
    rounds = settings.pool.rounds if times is None else max(times.values(), default=1)
    with driven_rounds(
        settings, batches, cards, spec, context, step, rounds=rounds, tests=tests, unfinished=unfinished, times=times,
        on_failure=on_failure,
    ) as run:  # fmt: skip
        results = store_attempts(selected, tuple(suites), run, batches, started, context)
        if run.carried_over:
            counts = ", ".join(f"{count} {outcome}" for outcome, count in results.counts.items())
            left_out = f", {run.left_out:,} of tests that are not selected any more were left out" if run.left_out else ""
            step.note(f"{counts}; {run.carried_over:,} attempts were carried over from the run that stopped{left_out}")
        return results


def changed_by_tests(spec: WorkerSpec, image: RuntimeImage) -> list[str]:
    """Return what tests have changed in the sources and, with the local pool, in the environment: a line for each path.

    The next build does not use it: it makes the sources or the environment anew.
    """
    sources = [f"{line} in the sources" for line in changes_of_checkout(Path(spec.root))]
    if image.kind != "venv":
        return sources
    return sources + [f"{line} in the environment" for line in changes_of_environment(Path(image.python))]


def run_in_order(
    settings: Settings, tests: Sequence[SelectedTest], card: str, spec: WorkerSpec, context: StageContext, step: Step
) -> PoolRun:
    """Run the tests on one card (or group of cards) in the order given, in one session while no test ends it, and once.

    A card that the pool has not any more is replaced by its first ones. Raises `PoolError`.
    """
    wanted, there = cards_in(card), cards_of(settings)
    cards = list(wanted) if set(wanted) <= set(there) else there[: len(wanted)]
    groups = groupby(tests, key=lambda test: (test.suite, test.file))
    batches = tuple(
        Batch(f"b{number:05d}", suite, file, tuple(test.test for test in of_file), 1.0, cards=len(cards))
        for number, ((suite, file), of_file) in enumerate(groups)
    )
    step.total(len(tests))
    plan = Plan(batches, len(batches), 0, 0.0, 0.0)
    retire_rounds(settings, context.folder)
    with driven_rounds(settings, plan, cards, spec, context, step, rounds=1) as run:
        retire_rounds(settings, context.folder)
        return run


def retire_rounds(settings: Settings, folder: Path) -> None:
    """Keep the folder of finished rounds as `<name>.last`, to be looked into: their tests run anew the next time.

    Raises `PoolError` when the pool cannot forget what it keeps outside of the folder.
    """
    kept = _kept(folder)
    if folder.exists():
        shutil.rmtree(kept, ignore_errors=True)
        redact_folder(folder)
        folder.rename(kept)
    pool_for(settings).forget(folder)


def reopen_rounds(folder: Path) -> None:
    """Make the rounds that were kept as `<name>.last` those of the next run, if there are no others."""
    if not folder.exists() and _kept(folder).exists():
        _kept(folder).rename(folder)


def _kept(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.last")


@contextmanager
def driven_rounds(
    settings: Settings,
    plan: Plan,
    cards: list[str],
    spec: WorkerSpec,
    context: StageContext,
    step: Step,
    *,
    rounds: int,
    tests: Sequence[SelectedTest] = (),
    unfinished: bytes = b"",
    times: Mapping[TestKey, int] | None = None,
    on_failure: OnFailure | None = None,
) -> Iterator[PoolRun]:
    """Drive the project's pool; a run that was stopped in the folder is taken up. The plan is there as `unfinished`."""

    def on_progress(tests: int, counts: Mapping[Outcome, int]) -> None:
        step.advance(", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]), tests)

    pool, given = pool_for(settings, context.run, with_cards=context.with_cards), settings.limits
    lock, what = pool.run_lock(context.folder, context.cards_lock)
    with acquire_or_wait(lock, step.say, what), _instance_running(settings, context, step):
        _set_other_content_aside(settings, pool, spec, context, step)
        if unfinished:
            write_whole_file(context.folder / _UNFINISHED, unfinished)
        limits = Limits(settings.longest_test_s, given.silence_seconds, given.startup_seconds, given.probe_seconds)
        run = run_rounds(
            pool, plan.batches, cards, spec, limits, context.folder, on_progress, rounds, urgent=plan.urgent, tests=tests,
            times=times, on_failure=on_failure,
        )  # fmt: skip
        for offence in run.offences[:_OFFENCES_SHOWN]:
            step.say(f"refused: {offence}")
        yield replace(run, pods=tuple(pool.pods()))


def _set_other_content_aside(
    settings: Settings, pool: ProjectPool, spec: WorkerSpec, context: StageContext, step: Step
) -> None:
    """Keep rounds in the folder that tested another image, other sources or another environment as `<name>.last`."""
    own = settings.pool.model_dump(mode="json", include={"kind", "image", "environment", "pass_environment"})
    sessions = {name: asdict(session) for name, session in spec.sessions.items()}
    tested = [context.content, spec.python, spec.root, spec.image, own, sessions]
    digest = hashlib.sha256(json.dumps(tested, sort_keys=True).encode()).hexdigest().encode()
    file, there = context.folder / _CONTENT, any(context.folder.glob("round-*")) or any(context.folder.glob("earlier-*"))
    if there and not (file.is_file() and file.read_bytes() == digest):
        step.say(
            "the run that stopped tested another image, other sources or another environment: its attempts are not taken "
            f"up, and are kept in {_kept(context.folder)}"
        )
        with sole_driver(context.folder):
            pool.clear(context.folder)
            for folder in context.folder.glob("round-*"):
                pool.end_round(folder)
        retire_rounds(settings, context.folder)
    context.folder.mkdir(parents=True, exist_ok=True)
    write_whole_file(file, digest)


def _instance_running(settings: Settings, context: StageContext, step: Step) -> AbstractContextManager[object]:
    """Have the pool's machine running, where it has one that is started for the tests."""
    instance = settings.pool.instance
    if instance is None or not context.with_cards:
        return nullcontext()
    timeout_s, leases = instance.timeout_seconds, context.cards_lock.with_name(LEASES)
    provider = CommandProvider(instance.start, instance.pause, instance.ready, instance.ready_url, timeout_s)
    return running_instance(provider, leases, lease_s=instance.lease_seconds, timeout_s=timeout_s, note=step.say)


def _not_run(run: PoolRun, plan: Plan) -> pa.Table:
    """A row for each test without an attempt, with the pool's reason where it has one."""
    healthy = sum(card.healthy for card in run.cards)
    unhealthy = "; ".join(f"card {card.card}: {card.reason}" for card in run.cards if not card.healthy)
    widths = {batch.suite: batch.cards for batch in plan.batches}
    lost = f"workers were lost before it had an outcome ({'; '.join(run.lost[-3:])})" if run.lost else None
    rows = []
    for suite, test in run.not_run:
        few = f"{widths[suite]} healthy card(s) are needed and {healthy} left ({unhealthy})"
        reason = few if widths[suite] > healthy else lost
        rows.append({"suite": suite, "test": test, "round": 1, "outcome": "not_run", "message": reason, "infra": reason})
    return pa.Table.from_pylist(rows, schema=ROWS)


def store_attempts(
    expected: Artifact, suites: tuple[str, ...], run: PoolRun, plan: Plan, started: float, context: StageContext
) -> DeviceTestResults:
    """Store the attempts of a stage, in place of those of an earlier run of it, and report them."""
    rows = pa.concat_tables([run.rows, _not_run(run, plan)])
    counts = counts_of(rows["outcome"])
    digests = []
    try:
        for suite in counts_of(rows["suite"]):
            own = rows.filter(kernels.equal(rows["suite"], suite)).drop_columns(["suite"])
            stored = context.results.write_rows(context.build, context.day, suite, from_report(context.build, suite, own))
            digests.append(f"{suite} {context.results.digest(stored)}")
    except AccelCiError as error:
        kept = f"all attempts are kept in {context.folder}: the same command stores them, and runs no test again"
        raise AccelCiError(f"{error}; {kept}") from error
    found = {outcome: counts[outcome] for outcome in OUTCOMES if counts.get(outcome)}
    digest = hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()
    work_s = round(time.monotonic() - started, 3)
    return DeviceTestResults(
        expected, suites, found, run.rounds, run.cards, run.makespan_s, run.lower_bound_s, work_s, digest,
        drivers=dict(run.drivers), pods=run.pods,
    )  # fmt: skip
