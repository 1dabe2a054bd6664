"""A run that is taken up with another plan: its attempts stay, and only the tests without one are run."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from accel_ci.model import Batch, Limits
from accel_ci.rounds.driver import PoolRun
from accel_ci.rounds.earlier import without
from accel_ci_tests.fixtures.ground import Ground
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.suite import Write, batch, numbered_batches, streamed

COUNT = 8


def write_suite(write: Write, root: Path) -> None:
    """Each run of a test leaves a line in `ran`. Test 0 fails; the last two wait for a file `go`."""
    write("test_a.py", f"""
        import pathlib, pytest, time
        here = pathlib.Path(__file__).parent
        @pytest.mark.parametrize("n", range({COUNT}))
        def test_n(n):
            with open({str(root / "ran")!r}, "a") as file:
                file.write(f"{{n}}\\n")
            while n >= {COUNT - 2} and not (here / "go").exists():
                time.sleep(0.05)
            assert n
    """)  # fmt: skip


def stop_in_round_1(ground: Ground, root: Path) -> set[tuple[int, str]]:
    """Kill a driver when all that can end has; return round and test of the attempts until then."""
    driver = ground.start_driver(COUNT)
    wait_for(lambda: (ground.run_dir / "round-1/workers").is_dir() and len(streamed(ground.run_dir)) >= COUNT - 2)
    driver.kill()
    driver.wait()
    (root / "go").touch()
    return {(attempt.round, attempt.test) for attempt in streamed(ground.run_dir)}


def rounds_of(result: PoolRun) -> Counter[tuple[int, str]]:
    return Counter((attempt.round, attempt.test) for attempt in result.attempts)


@pytest.mark.parametrize("change", ["batches", "limits", "cards"])
def test_another_plan_keeps_the_attempts(change: str, write: Write, root: Path, tmp_path: Path) -> None:
    write_suite(write, root)
    ground = Ground("local", root, tmp_path / "run")
    before = stop_in_round_1(ground, root)
    result = ground.run(
        numbered_batches(COUNT, size=2 if change == "batches" else 1),
        ("0", "1", "2") if change == "cards" else ("0", "1"),
        limits=Limits(test_timeout_s=77) if change == "limits" else None,
    )
    found = rounds_of(result)
    assert before <= found.keys()
    assert found == Counter([*((1, f"test_a.py::test_n[{n}]") for n in range(COUNT)), (2, "test_a.py::test_n[0]")])
    assert result.carried_over == len(before) == COUNT - 2
    ran = Counter((root / "ran").read_text().split())
    assert {n for n, times in ran.items() if times > 1} <= {"0", str(COUNT - 2), str(COUNT - 1)}, "those that were not done"
    assert len({(a.round, a.worker) for a in result.attempts if a.round == 1}) > 2, "names of workers are not used again"
    again = ground.run(numbered_batches(COUNT))
    assert rounds_of(again) == found
    assert Counter((root / "ran").read_text().split()) == ran, "with all attempts there, any plan runs nothing"


def test_attempts_of_tests_that_are_not_selected_any_more_are_left_out(write: Write, root: Path, tmp_path: Path) -> None:
    write_suite(write, root)
    ground = Ground("local", root, tmp_path / "run")
    stop_in_round_1(ground, root)
    result = ground.run(numbered_batches(COUNT)[2:])
    assert rounds_of(result) == Counter((1, f"test_a.py::test_n[{n}]") for n in range(2, COUNT))
    assert (result.carried_over, result.left_out) == (COUNT - 4, 2)


def test_fewer_rounds_keep_the_attempts_of_the_others(write: Write, root: Path, tmp_path: Path) -> None:
    write("test_a.py", "def test_1(): assert False\n")
    ground = Ground("local", root, tmp_path / "run")
    first = ground.run([batch("b0", "test_a.py::test_1")])
    assert sorted(rounds_of(first)) == [(1, "test_a.py::test_1"), (2, "test_a.py::test_1")]
    assert rounds_of(ground.run([batch("b0", "test_a.py::test_1")], max_rounds=1)) == rounds_of(first)


def test_a_plan_that_changes_time_and_again_loses_nothing(write: Write, root: Path, tmp_path: Path) -> None:
    write_suite(write, root)
    ground = Ground("local", root, tmp_path / "run")
    seen = stop_in_round_1(ground, root)
    for size, cards in itertools.product((1, 3, 2), (("0",), ("0", "1"))):
        result = ground.run(numbered_batches(COUNT, size=size), cards)
        assert seen <= rounds_of(result).keys()
        seen = set(rounds_of(result))
    assert len(list(ground.run_dir.glob("earlier-*"))) > 1


def test_a_group_is_whole_or_not_there() -> None:
    ordered = Batch("g", "suite", "a.py", ("a.py::1", "a.py::2"), 2.0, group="g")
    plain = Batch("p", "suite", "a.py", ("a.py::3", "a.py::4"), 2.0)
    assert without([ordered, plain], {("suite", "a.py::1"), ("suite", "a.py::3")}) == [
        ordered,
        Batch("p", "suite", "a.py", ("a.py::4",), 1.0),
    ]
    done = {("suite", f"a.py::{n}") for n in range(5)}
    assert without([ordered, plain], done) == []
