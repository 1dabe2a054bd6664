"""The batch that a worker tries next."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from accel_ci.runner.choice import Choice, FreeBatches
from accel_ci.runner.round_folder import PlannedBatch


def batch(
    name: str, file: str, estimate_s: float = 1.0, *, urgent: bool = False, avoid: tuple[str, ...] = ()
) -> PlannedBatch:
    return PlannedBatch(name, "suite", file, (f"{file}::test",), estimate_s, avoid, urgent)


A1, A2, A3 = batch("a1", "a", 4), batch("a2", "a", 4), batch("a3", "a", 1)
B1, B2 = batch("b1", "b", 3), batch("b2", "b", 3)
URGENT = batch("u", "c", 0.1, urgent=True)
OTHER = replace(A1, id="o1", suite="other")  # the same file in another suite
AVOIDING = batch("x", "d", 9, avoid=("0",))
PLAN = [URGENT, A1, A2, A3, B1, B2]


@pytest.mark.parametrize(
    ("batches", "taken", "suite", "expected"),
    [
        (PLAN, {}, "suite", URGENT),
        (PLAN, {"u": "w"}, "suite", A1),
        (PLAN, {"u": "w"}, None, A1),
        (PLAN, {"u": "w", "a1": "w"}, None, B1),  # a has 5 s for two workers, b has 6 s for one
        (PLAN, {"u": "w", "a1": "w", "b1": "v"}, None, A2),
        (PLAN, {"u": "w", "a1": "w"}, "suite", B1),  # of two files at hand the one with most left per worker
        ([A3, OTHER], {}, "suite", A3),  # the suite that the worker has collected
        ([A3, OTHER], {}, "other", OTHER),
        ([A3, OTHER], {}, None, OTHER),
        ([A3, OTHER], {"a3": "w"}, "suite", OTHER),
        (PLAN, {name.id: "w" for name in PLAN}, "suite", None),
        ([AVOIDING], {}, None, None),
        ([AVOIDING, A3], {}, None, A3),
        ([], {}, None, None),
    ],
)
def test_the_best_free_batch(
    batches: list[PlannedBatch], taken: dict[str, str], suite: str | None, expected: PlannedBatch | None
) -> None:
    free = FreeBatches(batches, "0")
    free.update(taken)
    assert Choice(free, 3).next(suite) == expected


def test_a_worker_stays_with_its_last_file() -> None:
    free = FreeBatches([A3, B1, batch("a4", "a", 0.1)])
    choice = Choice(free, 0)
    choice.record(A3, won=True)
    free.update({"a3": "me"})
    assert choice.next("suite") == batch("a4", "a", 0.1)


def test_requeued_batches_come_first_even_if_claims_of_some_are_known_before_them() -> None:
    free = FreeBatches(PLAN[1:])
    free.update({"h0": "w"})
    free.add([batch("h0", "b", urgent=True), batch("h1", "b", urgent=True)])
    assert Choice(free, 0).next("suite") == batch("h1", "b", urgent=True)


@pytest.mark.parametrize("urgent", [0, 20])
def test_workers_that_start_together_soon_try_different_batches(urgent: int) -> None:
    plan = [batch(f"{file}-{number}", str(file)) for file in range(5) for number in range(8)]
    plan += [batch(f"u-{number}", str(number % 5), urgent=True) for number in range(urgent)]
    free = FreeBatches(plan)  # no worker learns of the others' claims
    taken: set[str] = set()
    tries = []
    for rank in range(16):
        choice = Choice(free, rank)
        count, won = 0, False
        while not won:
            chosen = choice.next(None)
            assert chosen is not None
            won = chosen.id not in taken
            taken.add(chosen.id)
            choice.record(chosen, won)
            count += 1
        tries.append(count)
    assert len(taken) == 16
    assert max(tries) <= 3


def test_after_four_losses_a_worker_waits_for_other_claims_to_be_known() -> None:
    free = FreeBatches([batch(f"a{number}", "a") for number in range(8)])
    choice = Choice(free, 0)
    for _ in range(4):
        lost = choice.next(None)
        assert lost is not None
        choice.record(lost, won=False)
    assert choice.next(None) is None
    free.update({"a0": "w"})
    chosen = choice.next(None)
    assert chosen is not None
    assert chosen.id == "a4"  # a1 to a3 were lost, although their owners are not known yet


def place(batch: PlannedBatch) -> tuple[str, str]:
    return batch.suite, batch.file


def naive(
    batches: list[PlannedBatch], claims: list[tuple[str, str]], suite: str | None, last: tuple[str, str] | None
) -> PlannedBatch | None:
    """The same rule from all batches and all claims."""
    taken = dict(claims)
    free = [batch for batch in batches if batch.id not in taken]
    at = {owner: place(batch) for name, owner in claims for batch in batches if batch.id == name and not batch.urgent}

    def left_per_worker(file: tuple[str, str], more: int) -> float:
        left = sum(batch.estimate_s for batch in free if place(batch) == file and not batch.urgent)
        return left / max(1, list(at.values()).count(file) + more)

    urgent = [batch for batch in free if batch.urgent]
    at_hand = [batch for batch in free if batch.suite == suite]
    if urgent or not free:
        return urgent[0] if urgent else None
    if at_hand:
        return max(at_hand, key=lambda batch: (place(batch) == last, left_per_worker(place(batch), 0)))
    return max(free, key=lambda batch: left_per_worker(place(batch), 1))


@pytest.mark.parametrize("seed", range(20))
def test_incremental_updates_choose_as_a_search_of_all_batches_does(seed: int) -> None:
    rng = random.Random(seed)
    # Estimates are whole multiples of powers of two, so that sums do not depend on the order of summation.
    plan = [
        replace(
            batch(f"b{number}", f"f{rng.randrange(6)}", rng.randrange(1, 1 << 20) / 1024, urgent=number < 5),
            suite=rng.choice(["one", "two"]),
        )
        for number in range(60)
    ]
    free, claims = FreeBatches(plan), list[tuple[str, str]]()
    suites: dict[str, str | None] = {f"w{number}": None for number in range(5)}
    last: dict[str, tuple[str, str]] = {}
    choices = {worker: Choice(free, 0) for worker in suites}
    for step in range(62):
        if step == 30:
            fresh = [batch("h0", "f1", 3, urgent=True), batch("h1", "f7", 3, urgent=True)]
            plan += fresh
            free.add(fresh)
        worker = rng.choice(list(suites))
        chosen = choices[worker].next(suites[worker])
        assert chosen == naive(plan, claims, suites[worker], last.get(worker))
        assert chosen is not None
        claims.append((chosen.id, worker))
        choices[worker].record(chosen, won=True)
        free.update(dict(claims))
        suites[worker] = chosen.suite
        last[worker] = place(chosen)
    assert choices["w0"].next(None) is None
