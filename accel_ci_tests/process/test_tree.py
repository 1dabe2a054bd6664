"""Ending whole process trees by an argument of their first process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from accel_ci.process.tree import end_processes, with_argument
from accel_ci_tests.fixtures.processes import wait_for

# Starts a process in a session of its own, without the argument, which ignores SIGTERM; writes its id; then sleeps.
_PARENT = """
import pathlib, signal, subprocess, sys, time
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
started = subprocess.Popen([sys.executable, "-c", child], start_new_session=True, stdout=subprocess.PIPE)
started.stdout.readline()
pathlib.Path(sys.argv[1]).write_text(str(started.pid))
time.sleep(600)
"""


@pytest.mark.parametrize("parent", ["obedient", "stubborn"])
def test_a_tree_is_ended_with_descendants_that_left_the_session(tmp_path: Path, parent: str) -> None:
    seen, argument = tmp_path / "pid", f"--output_base={tmp_path}"
    with subprocess.Popen([sys.executable, "-c", _PARENT, str(seen), parent, argument]) as process:
        try:
            wait_for(lambda: seen.is_file() and seen.read_text())
            child = psutil.Process(int(seen.read_text()))
            assert {found.pid for found in with_argument(argument)} == {process.pid}
            assert end_processes(argument, 1) == 1
            assert process.wait(10) != 0
        finally:
            process.kill()
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert not with_argument(argument)
    assert end_processes(argument, 1) == 0


def test_only_the_whole_argument_counts(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", f"--output_base={tmp_path}/other"]
    ) as process:
        try:
            assert end_processes(f"--output_base={tmp_path}", 1) == 0
            assert process.poll() is None
        finally:
            process.kill()
