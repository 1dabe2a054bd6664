"""Which batch a worker tries next."""

from __future__ import annotations

import pytest

from accel_ci.runner.choice import choose
from accel_ci.runner.round_folder import PlannedBatch


def batch(
    name: str, file: str, estimate_s: float = 1.0, *, urgent: bool = False, avoid: tuple[str, ...] = ()
) -> PlannedBatch:
    return PlannedBatch(name, "suite", file, (f"{file}::test",), estimate_s, avoid, urgent)


A1, A2, A3 = batch("a1", "a", 4), batch("a2", "a", 4), batch("a3", "a", 1)
B1, B2 = batch("b1", "b", 3), batch("b2", "b", 3)
URGENT = batch("u", "c", 0.1, urgent=True)
AVOIDING = batch("x", "d", 9, avoid=("0",))
PLAN = [URGENT, A1, A2, A3, B1, B2]


@pytest.mark.parametrize(
    ("batches", "taken", "collected", "rank", "expected"),
    [
        (PLAN, {}, {"a"}, 0, URGENT),
        (PLAN, {"u": "w"}, {"b"}, 0, B1),
        (PLAN, {"u": "w"}, set(), 0, A1),
        (PLAN, {"u": "w", "a1": "w"}, set(), 0, B1),  # a has 5 s for two workers, b has 6 s for one
        (PLAN, {"u": "w", "a1": "w", "b1": "v"}, set(), 0, A2),
        (PLAN, {name.id: "w" for name in PLAN}, {"a"}, 0, None),
        (PLAN, {}, set(), 1, A1),
        (PLAN, {}, set(), 2, B1),
        (PLAN, {}, set(), 3, A2),
        (PLAN, {}, set(), 6, URGENT),
        ([AVOIDING], {}, set(), 0, None),
        ([AVOIDING, A3], {}, set(), 0, A3),
        ([], {}, set(), 3, None),
    ],
)
def test_choose(
    batches: list[PlannedBatch], taken: dict[str, str], collected: set[str], rank: int, expected: PlannedBatch | None
) -> None:
    assert choose(batches, taken, "0", collected, rank) == expected


def test_workers_that_start_together_do_not_try_the_same() -> None:
    plan = [batch(f"{file}{number}", str(file)) for file in range(5) for number in range(8)]
    chosen = [choose(plan, {}, "0", (), rank) for rank in range(40)]
    assert len({choice.id for choice in chosen if choice is not None}) == 40
