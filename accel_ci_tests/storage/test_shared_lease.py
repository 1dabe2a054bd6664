"""Turns of several machines, through the bucket of a real S3 server."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from accel_ci.storage.bucket import BucketStore
from accel_ci.storage.shared_folder import SharedFolder
from accel_ci.storage.shared_lease import TurnLostError, turn
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.stored_attempts import NEEDED, real_s3

pytestmark = real_s3

MACHINE = """
import sys, time
from pathlib import Path
from accel_ci.storage.bucket import open_bucket
from accel_ci.storage.shared_lease import turn

shared, cache, stale_s, work_s, bucket, prefix, endpoint, access, secret = sys.argv[1:]
objects, shared = open_bucket(bucket, prefix, Path(cache), endpoint, (access, secret)), Path(shared)
for _ in range(3):
    with turn(objects, "hud.turn", float(stale_s)) as check:
        (shared / "inside").touch(exist_ok=False)  # fails if another one is inside
        print("inside", flush=True)
        time.sleep(float(work_s))
        check()
        (shared / "inside").unlink()
"""


@pytest.fixture
def start(tmp_path: Path, open_bucket_store: Callable[..., BucketStore]) -> Callable[..., Popen[str]]:
    """Start a process that takes three turns, of so many seconds."""
    endpoint, bucket, *keys = (os.environ[name] for name in NEEDED)
    prefix = open_bucket_store().location("").removeprefix(f"s3://{bucket}/")

    def begin(work_s: float, stale_s: float = 20) -> Popen[str]:
        words = [str(tmp_path), str(tmp_path / "cache"), str(stale_s), str(work_s), bucket, prefix, endpoint, *keys]
        return Popen([sys.executable, "-c", MACHINE, *words], stdout=PIPE, text=True)

    return begin


def test_one_process_has_the_turn_at_a_time(start: Callable[..., Popen[str]]) -> None:
    machines = [start(0.2) for _ in range(3)]
    printed = [machine.communicate(timeout=120)[0] for machine in machines]
    assert [(machine.returncode, text.count("inside")) for machine, text in zip(machines, printed, strict=True)] == [
        (0, 3)
    ] * 3


def test_the_turn_of_a_process_that_was_killed_is_taken_over(
    start: Callable[..., Popen[str]], bucket_store: BucketStore
) -> None:
    with start(600, stale_s=3) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "inside\n"
        killed.kill()
    left = bucket_store.find("hud.turn")
    assert left is not None
    assert left.size > 0, "nobody ended the turn"
    with turn(bucket_store, "hud.turn", 3) as check:
        check()
    left = bucket_store.find("hud.turn")
    assert left is not None
    assert left.size == 0, "the turn is free"


def test_a_long_turn_is_not_taken_over(start: Callable[..., Popen[str]], bucket_store: BucketStore) -> None:
    with turn(bucket_store, "hud.turn", 3) as check, start(0, stale_s=3) as waiting:
        time.sleep(9)
        check()
        assert waiting.poll() is None
        waiting.kill()


def test_a_process_that_stood_still_has_lost_its_turn(start: Callable[..., Popen[str]], bucket_store: BucketStore) -> None:
    with start(1, stale_s=3) as still:
        assert still.stdout is not None
        assert still.stdout.readline() == "inside\n"
        os.kill(still.pid, signal.SIGSTOP)
        with turn(bucket_store, "hud.turn", 3):
            os.kill(still.pid, signal.SIGCONT)
            assert still.wait(timeout=60) != 0
        taken = bucket_store.find("hud.turn")
        assert taken is not None
        assert taken.size == 0, "the one that lost its turn does not end another's"


def test_who_lost_the_turn_sends_no_more(tmp_path: Path, bucket_store: BucketStore) -> None:
    share, hud = SharedFolder(tmp_path, bucket_store), tmp_path / "hud"
    hud.mkdir()
    (hud / "index.html").write_text("stale")
    with share.turn(tmp_path / "hud.turn") as check:
        mine = bucket_store.find("hud.turn")
        assert bucket_store.replace("hud.turn", b"of another", mine) is not None
        wait_for(lambda: _is_lost(check), seconds=60)
        with pytest.raises(TurnLostError, match=r"hud\.turn"):
            share.send_folder(hud, "index.html", check)
    assert bucket_store.find("hud/index.html") is None


def _is_lost(check: Callable[[], None]) -> bool:
    try:
        check()
    except TurnLostError:
        return True
    return False
