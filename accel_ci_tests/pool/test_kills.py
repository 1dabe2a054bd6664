"""Nothing is lost and nothing is there twice, whichever process is killed; and nothing is left running."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from accel_ci.errors import PoolError
from accel_ci.model import Limits, WorkerSpec
from accel_ci.pool.environment import clean_environment
from accel_ci.rounds.folder_round import FolderRound
from accel_ci_tests.conftest import wait_for
from accel_ci_tests.fixtures.rounds import Ground, Run, Write, batch, outcomes

DRIVER = """
import sys
from pathlib import Path
from accel_ci.pool.environment import clean_environment
from accel_ci.model import Limits, WorkerSpec
from accel_ci_tests.fixtures.bucket_pool import round_store
from accel_ci_tests.fixtures.rounds import Ground, batch
root, run_dir, count, prefix = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
ground = Ground(round_store(prefix=prefix) if prefix else None)
batches = [batch(f"b{n}", f"test_a.py::test_n[{2 * n}]", f"test_a.py::test_n[{2 * n + 1}]") for n in range(count // 2)]
spec = WorkerSpec(sys.executable, root, clean_environment({}), "CARD")
ground.run_rounds(batches, ["0", "1"], spec, Limits(), run_dir, lambda *_: None)
"""


def start_driver(ground: Ground, root: Path, run_dir: Path, count: int) -> subprocess.Popen[bytes]:
    """A driver in a process of its own, to be killed."""
    prefix = ground.store.prefix if ground.store is not None else ""
    command = [sys.executable, "-c", DRIVER, str(root), str(run_dir), str(count), prefix]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2])


def is_gone(pid: int) -> bool:
    """Whether a process has ended, be it a zombie that nobody has waited for."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return True
    return state == "Z"


def slow_suite(write: Write, tmp_path: Path, count: int, free: int | None = None) -> Path:
    """Tests that take a moment and write down each time that they are run; gives back that record.

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


def streamed(run_dir: Path) -> list[str]:
    """The tests whose attempts are in the workers' records, lines that are complete alone."""
    paths = run_dir.glob("round-1/workers/*/events.jsonl")
    lines = [line for path in paths for line in path.read_bytes().split(b"\n")[:-1]]
    return [event["test"] for event in map(json.loads, lines) if event["event"] == "attempt"]


def enough_streamed(run_dir: Path, least: int) -> bool:
    return len(streamed(run_dir)) >= least


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


def test_a_worker_that_is_killed_again_and_again_ends_the_round(run: Run, write: Write) -> None:
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
    result = run([batch("b0", "test_a.py::test_2"), batch("b1", "test_a.py::test_1")], ["0"])
    assert outcomes(result) == {"test_a.py::test_2": "passed"}


def test_a_killed_driver_is_resumed(run: Run, write: Write, root: Path, tmp_path: Path, ground: Ground) -> None:
    log = slow_suite(write, tmp_path, 60, free=40)
    run_dir = tmp_path / "run"
    for at_least in (8, 25):
        driver = start_driver(ground, root, run_dir, 60)
        wait_for(partial(enough_streamed, run_dir, at_least))
        driver.kill()
        driver.wait()
    before = streamed(run_dir)
    if ground.store is not None:
        FolderRound(run_dir / "round-1").await_old_workers()
        shutil.rmtree(run_dir)  # the next driver has only what is in the bucket
    (tmp_path / "go").touch()
    tests = [f"test_a.py::test_n[{n}]" for n in range(60)]
    result = run([batch(f"b{n}", *tests[2 * n : 2 * n + 2]) for n in range(30)])
    assert outcomes(result) == dict.fromkeys(tests, "passed")
    assert len(streamed(run_dir)) == len(set(streamed(run_dir))) == 60
    assert set(before) < set(tests)
    runs = [line.split() for line in log.read_text().splitlines()]
    repeated = {n for n, _ in runs if sum(other == n for other, _ in runs) > 1}
    assert len(repeated) <= 4  # what each of two workers was at when each of two drivers was killed
    wait_for(lambda: all(is_gone(int(pid)) for _, pid in runs))

    again = run([batch(f"b{n}", *tests[2 * n : 2 * n + 2]) for n in range(30)])
    assert set(again.attempts) == set(result.attempts)
    assert again.rounds == result.rounds
    assert len(log.read_text().splitlines()) == len(runs)


def test_another_plan_replaces_what_was_there(run: Run, write: Write) -> None:
    write("test_a.py", "def test_1(): assert False\ndef test_2(): pass\n")
    assert outcomes(run([batch("b0", "test_a.py::test_1")]), 2) == {"test_a.py::test_1": "failed"}
    assert outcomes(run([batch("b0", "test_a.py::test_2")])) == {"test_a.py::test_2": "passed"}


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_runs_on_when_the_driver_ends(
    write: Write, root: Path, tmp_path: Path, ground: Ground, by: signal.Signals
) -> None:
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
    driver = start_driver(ground, root, tmp_path / "run", 2)
    wait_for(lambda: pids.exists() and pids.read_text().count("\n") >= 1)
    driver.send_signal(by)
    driver.wait(60)
    wait_for(lambda: all(is_gone(int(pid)) for pid in pids.read_text().split()))


def test_an_error_of_the_callback_ends_the_workers(write: Write, root: Path, tmp_path: Path, ground: Ground) -> None:
    log = slow_suite(write, tmp_path, 100)

    def refuse(*_: object) -> None:
        raise RuntimeError("the disk is full")

    batches = [batch(f"b{n}", f"test_a.py::test_n[{n}]") for n in range(100)]
    spec = WorkerSpec(sys.executable, str(root), clean_environment({}), "CARD")
    with pytest.raises(RuntimeError, match="disk is full"):
        ground.run_rounds(batches, ["0", "1"], spec, Limits(), tmp_path / "run", refuse)
    assert all(is_gone(int(line.split()[1])) for line in log.read_text().splitlines())


def test_one_driver_at_a_time(write: Write, root: Path, run: Run, tmp_path: Path, ground: Ground) -> None:
    slow_suite(write, tmp_path, 4, free=1)
    driver = start_driver(ground, root, tmp_path / "run", 4)
    wait_for(lambda: streamed(tmp_path / "run"))
    with pytest.raises(PoolError, match="another driver is at work"):
        run([batch("b0", "test_a.py::test_n[0]")])
    driver.kill()
    driver.wait()
