"""Kills at random moments, and a full disk: after resuming, every test has one verdict and every attempt is there once.

`ACCEL_CI_POOL_KILLS` says how many runs over a folder, and how many over a bucket, are killed, and thrice as many as in
containers: 3 by default, 86 in `make test-nightly`, which are 200 runs. Each is drawn from its own seed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from accel_ci.ledger.account import account_of
from accel_ci.model import Build
from accel_ci.results.rollups import judge_tests, named
from accel_ci.results.rows import from_report
from accel_ci.rounds.driver import PoolRun
from accel_ci.runner.round_folder import EVENTS
from accel_ci_tests.fixtures.ground import Ground
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.suite import Write, numbered_batches, streamed

KILLS = int(os.environ.get("ACCEL_CI_POOL_KILLS", "3"))
COUNT = 40
TESTS = [f"test_a.py::test_n[{n}]" for n in range(COUNT)]


def write_suite(write: Write, free: int = COUNT) -> None:
    """All tests but the first `free` ones do not end until there is a file `go` beside them."""
    write("test_a.py", f"""
        import pathlib, pytest, time
        @pytest.mark.parametrize("n", range({COUNT}))
        def test_n(n):
            time.sleep(0.05)
            while n >= {free} and not pathlib.Path(__file__).with_name("go").exists():
                time.sleep(0.05)
    """)  # fmt: skip


def streamed_rounds(run_dir: Path) -> list[tuple[int, str]]:
    """Return round and test of the attempts in the workers' records."""
    return [(attempt.round, attempt.test) for attempt in streamed(run_dir)]


def is_so_far(run_dir: Path, at_least: int, driver: subprocess.Popen[bytes]) -> bool:
    """Whether so many attempts are streamed, or the driver has ended."""
    begun = (run_dir / "round-1/workers").is_dir()
    return driver.poll() is not None or (begun and len(streamed(run_dir)) >= at_least)


def assert_it_worked(driver: subprocess.Popen[bytes]) -> None:
    """The driver runs, has ended well, or was killed: one that cannot start would make these tests pass for nothing."""
    assert driver.poll() in (None, 0, -signal.SIGKILL)


def check(result: PoolRun, streamed_attempts: Sequence[tuple[int, str]]) -> None:
    """Nothing is lost, and nothing is there twice."""
    build = Build("r", "v")
    report = result.rows.drop_columns(["suite"])
    rows = pa.concat_tables(list(from_report(build, "suite", report)))
    account = account_of(pa.array(TESTS), named(judge_tests(rows), rows["test"]))
    assert sum(account.counts.values()) == COUNT
    assert account.counts["passed"] + account.counts["flaky"] == COUNT, account.counts
    stored = Counter((attempt.round, attempt.test) for attempt in result.attempts)
    assert set(stored.values()) == {1}
    assert set(streamed_attempts) <= stored.keys()


def kill(victim: str, driver: subprocess.Popen[bytes], run_dir: Path, rng: random.Random) -> None:
    """End a process of the run at once; one that is not there any more is let be."""
    if victim == "driver":
        driver.kill()
        return
    folders = sorted(run_dir.glob("round-1/workers/*"))
    with contextlib.suppress(OSError, ValueError, IndexError):
        folder = rng.choice(folders)
        events = map(json.loads, (folder / EVENTS).read_text().splitlines())
        kind = "worker_started" if victim == "worker" else "child_started"
        os.kill([event["pid"] for event in events if event["event"] == kind][-1], signal.SIGKILL)


@pytest.mark.parametrize("seed", range(KILLS))
def test_nothing_is_lost_by_a_kill(seed: int, ground: Ground, write: Write) -> None:
    rng = random.Random(seed)
    write_suite(write)
    run_dir = ground.run_dir
    driver = ground.start_driver(COUNT, size=2)
    for at_least in sorted(rng.sample(range(COUNT - 5), rng.randint(1, 2))):
        wait_for(partial(is_so_far, run_dir, at_least, driver))
        assert_it_worked(driver)
        # Over a bucket the supervisors' own folders are elsewhere, and the driver is what there is to kill.
        kill(rng.choice(["driver", "worker", "child"] if ground.store is None else ["driver"]), driver, run_dir, rng)
    if rng.random() < 0.5:
        driver.kill()
    driver.wait(120)
    assert_it_worked(driver)
    before = streamed_rounds(run_dir)
    result = ground.run(numbered_batches(COUNT, size=2))
    check(result, [*before, *streamed_rounds(run_dir)])


@pytest.mark.parametrize("seed", range(KILLS // 3))
def test_nothing_is_lost_by_the_kill_of_a_container(seed: int, docker_ground: Ground, write: Write) -> None:
    rng = random.Random(seed)
    write_suite(write)
    driver = docker_ground.start_driver(COUNT)
    at_least = rng.randrange(COUNT - 5)
    wait_for(lambda: len(docker_ground.streamed()) >= at_least and docker_ground.containers())
    if rng.random() < 0.5:
        driver.kill()
    else:
        rng.choice(docker_ground.containers()).kill()
    driver.wait(120)
    assert_it_worked(driver)
    before = streamed_rounds(docker_ground.run_dir)
    result = docker_ground.run(numbered_batches(COUNT))
    check(result, [*before, *streamed_rounds(docker_ground.run_dir)])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_fills_up_loses_nothing(small_disk: Path, write: Write, root: Path) -> None:
    write_suite(write, free=10)
    ground = Ground("local", root, small_disk / "run")
    run_dir = ground.run_dir
    driver = ground.start_driver(COUNT, size=2)
    wait_for(lambda: (run_dir / "round-1/workers").is_dir() and len(streamed(run_dir)) >= 5)
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 10)):
            pass
    (root / "go").touch()
    driver.wait(120)
    before = streamed_rounds(run_dir)
    assert len(before) < COUNT
    filler.unlink()
    result = ground.run(numbered_batches(COUNT, size=2))
    check(result, [*before, *streamed_rounds(run_dir)])
