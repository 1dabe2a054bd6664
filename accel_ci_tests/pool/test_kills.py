"""Nothing is lost and nothing is there twice, whichever process is killed; and nothing is left running."""

from __future__ import annotations

import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

from accel_ci.errors import PoolError
from accel_ci_tests.fixtures.bucket_pool import await_processes
from accel_ci_tests.fixtures.ground import Ground, Run, outcomes
from accel_ci_tests.fixtures.processes import is_gone, wait_for
from accel_ci_tests.fixtures.suite import Write, batch, numbered_batches


def slow_suite(write: Write, tmp_path: Path, count: int, free: int | None = None) -> Path:
    """Write tests that take a moment and record each of their runs; return that record.

    All but the first `free` ones do not end until there is a file `go`.
    """
    log = tmp_path / "executions"
    free = count if free is None else free
    write(
        "test_a.py",
        f"""
        import os, pytest, time
        @pytest.mark.parametrize("n", range({count}))
        def test_n(n):
            with open({str(log)!r}, "a") as file:
                file.write(f"{{n}} {{os.getpid()}}\\n")
            time.sleep(0.1)
            while n >= {free} and not os.path.exists({str(tmp_path / "go")!r}):
                time.sleep(0.05)
        """,
    )
    return log


def enough_streamed(ground: Ground, least: int) -> bool:
    return len(ground.streamed()) >= least


def runs_of(test: str, log: Path) -> int:
    """Count the runs of a test that the record has."""
    number = test.partition("[")[2].rstrip("]")
    return sum(line.split()[0] == number for line in log.read_text().splitlines())


@pytest.mark.parametrize("cards", [["0", "1"], ["0"]])
def test_a_killed_worker_loses_nothing(
    run: Run, write: Write, tmp_path: Path, cards: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    marker = tmp_path / "killed"
    write(
        "test_a.py",
        f"""
        import os, pathlib, pytest, signal, time
        @pytest.mark.parametrize("n", range(20))
        def test_n(n):
            marker = pathlib.Path({str(marker)!r})
            if n == 7 and not marker.exists():
                marker.touch()
                os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(0.05)
        """,
    )
    tests = [f"test_a.py::test_n[{n}]" for n in range(20)]
    result = run([batch(f"b{n}", *tests[5 * n : 5 * n + 5]) for n in range(4)], cards)
    assert marker.exists()
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert len(result.rounds) == 1
    warnings = [record.getMessage() for record in caplog.records if record.name == "accel_ci.rounds.driver"]
    assert any("ended (signal 9); starting another" in warning for warning in warnings)


def test_a_test_that_kills_its_worker_again_and_again_has_crashed(run: Run, write: Write) -> None:
    write(
        "test_a.py",
        """
        import os, signal, time
        def test_1():
            time.sleep(2)  # what was before is streamed
            os.kill(os.getppid(), signal.SIGKILL)
        def test_2(): pass
        """,
    )
    batches = [batch("b0", "test_a.py::test_2"), batch("b1", "test_a.py::test_1")]
    result = run(batches, ["0"])
    assert outcomes(result) == {"test_a.py::test_2": "passed", "test_a.py::test_1": "crashed"}
    assert outcomes(result, 2) == {"test_a.py::test_1": "crashed"}
    assert "signal 9" in (result.attempts[-1].message or "")
    assert set(run(batches, ["0"]).attempts) == set(result.attempts), "a driver that starts again knows what was charged"


def test_a_killed_driver_is_resumed(write: Write, tmp_path: Path, ground: Ground) -> None:
    log = slow_suite(write, tmp_path, 60, free=40)
    streamed_runs: dict[str, int] = {}  # tests whose result a killed driver had
    for at_least in (8, 25):
        driver = ground.start_driver(60, size=2)
        wait_for(partial(enough_streamed, ground, at_least))
        driver.kill()
        driver.wait()
        streamed_runs |= {test: runs_of(test, log) for test in ground.streamed() if test not in streamed_runs}
    before = ground.streamed()
    if ground.store is not None:
        await_processes(ground.run_dir)
        shutil.rmtree(ground.run_dir)  # the next driver has only what is in the bucket
    (tmp_path / "go").touch()
    tests = [f"test_a.py::test_n[{n}]" for n in range(60)]
    result = ground.run(numbered_batches(60, size=2))
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert len(ground.streamed()) == len(set(ground.streamed())) == 60
    assert set(before) < set(tests)
    runs = [line.split() for line in log.read_text().splitlines()]
    assert {test: runs_of(test, log) for test in streamed_runs} == streamed_runs, "what was streamed is not run again"
    if ground.store is None:  # otherwise what was not yet in the bucket is lost with its worker
        repeated = {n for n, _ in runs if sum(other == n for other, _ in runs) > 1}
        assert len(repeated) <= 8  # the batches of two that two workers were at when each of two drivers was killed
    wait_for(lambda: all(is_gone(int(pid)) for _, pid in runs))

    again = ground.run(numbered_batches(60, size=2))
    assert set(again.attempts) == set(result.attempts)
    assert again.rounds == result.rounds
    assert len(log.read_text().splitlines()) == len(runs)


def test_another_plan_replaces_what_was_there(run: Run, write: Write) -> None:
    write("test_a.py", "def test_1(): assert False\ndef test_2(): pass\n")
    assert outcomes(run([batch("b0", "test_a.py::test_1")]), 2) == {"test_a.py::test_1": "failed"}
    assert outcomes(run([batch("b0", "test_a.py::test_2")])) == {"test_a.py::test_2": "passed"}


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_runs_on_when_the_driver_ends(write: Write, tmp_path: Path, ground: Ground, by: signal.Signals) -> None:
    pids = tmp_path / "pids"
    write(
        "test_a.py",
        f"""
        import os, pytest, subprocess, sys, time
        @pytest.mark.parametrize("n", range(2))
        def test_n(n):
            sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            with open({str(pids)!r}, "a") as file:
                file.write(f"{{os.getppid()}} {{os.getpid()}} {{sleeper.pid}}\\n")
            time.sleep(1000)
        """,
    )
    driver = ground.start_driver(2, size=2)
    wait_for(lambda: pids.exists() and pids.read_text().count("\n") >= 1)
    driver.send_signal(by)
    driver.wait(60)
    wait_for(lambda: all(is_gone(int(pid)) for pid in pids.read_text().split()))


def test_an_error_of_the_callback_ends_the_workers(write: Write, tmp_path: Path, ground: Ground) -> None:
    log = slow_suite(write, tmp_path, 100)

    def refuse(*_: object) -> None:
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk is full"):
        ground.run(numbered_batches(100), on_progress=refuse)
    assert all(is_gone(int(line.split()[1])) for line in log.read_text().splitlines())


def test_one_driver_at_a_time(write: Write, tmp_path: Path, ground: Ground) -> None:
    slow_suite(write, tmp_path, 4, free=1)
    driver = ground.start_driver(4, size=2)
    wait_for(ground.streamed)
    with pytest.raises(PoolError, match="another driver is at work"):
        ground.run([batch("b0", "test_a.py::test_n[0]")])
    driver.kill()
    driver.wait()
