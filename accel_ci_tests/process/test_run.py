from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from subprocess import Popen, TimeoutExpired

import pytest

import accel_ci
from accel_ci.errors import BuildError
from accel_ci.process.run import run_apart, run_tool
from accel_ci_tests.fixtures.processes import is_gone, wait_for

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(300)
    os._exit(0)
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.01)
print("started", flush=True)
"""


def pid_in(file: Path) -> int:
    """Wait for a file with a process id; return it."""
    wait_for(lambda: file.exists() and file.read_text())
    return int(file.read_text())


def test_a_daemon_is_ended_and_does_not_hold_the_run(tmp_path: Path) -> None:
    """It is in a session of its own, its parent has ended, and it still holds the pipe of the output."""
    file = tmp_path / "pid"
    done = run_tool([sys.executable, "-c", DAEMON, str(file)], timeout_s=60, environment=os.environ)
    assert (done.status, done.output) == (0, "started\n")
    assert is_gone(pid_in(file))


def test_a_command_at_its_limit_is_ended_with_its_daemons(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with pytest.raises(BuildError, match=r"did not end within 3 s; its last output: started$"):
        run_tool([sys.executable, "-c", f"{DAEMON}\ntime.sleep(300)", str(file)], timeout_s=3, environment=os.environ)
    assert is_gone(pid_in(file))


def test_a_daemon_may_stay_where_it_is_the_purpose(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = [sys.executable, "-c", DAEMON, str(file)]
    done = run_tool(command, timeout_s=60, environment=os.environ, may_leave_processes=True)
    assert (done.status, done.output) == (0, "started\n")
    pid = pid_in(file)
    assert not is_gone(pid)
    os.kill(pid, signal.SIGKILL)


def test_a_command_ends_with_the_process_that_runs_it(tmp_path: Path) -> None:
    """Also when that one is killed."""
    file = tmp_path / "pid"
    program = (
        "import os, sys; from accel_ci.process.run import run_tool\n"
        "run_tool(['sh', '-c', f'echo $$ > {sys.argv[1]}; sleep 300'], timeout_s=300, environment=os.environ)"
    )
    driver = os.posix_spawn(sys.executable, [sys.executable, "-c", program, str(file)], os.environ)
    pid = pid_in(file)
    os.kill(driver, signal.SIGKILL)
    os.waitpid(driver, 0)
    wait_for(lambda: is_gone(pid))


def test_of_a_flood_the_end_is_kept() -> None:
    done = run_tool(["sh", "-c", "yes | head -c 50000000; echo the end"], timeout_s=60, environment=os.environ)
    assert done.status == 0
    assert len(done.output) < 9_000_000
    assert done.output.startswith("[4")
    assert done.tail.endswith("the end")


def test_status_input_and_bytes_that_are_no_text() -> None:
    assert run_tool(["sh", "-c", "exit 7"], timeout_s=60, environment=os.environ).status == 7
    assert run_tool(["sh", "-c", "kill -9 $$"], timeout_s=60, environment=os.environ).status == -9
    assert run_tool(["wc", "-c"], timeout_s=60, environment=os.environ, stdin="x" * 300_000).output.strip() == "300000"
    assert run_tool(["printf", r"a\377b"], timeout_s=60, environment=os.environ).output == "a\ufffdb"
    with pytest.raises(FileNotFoundError):
        run_tool(["no-such-program"], timeout_s=60, environment=os.environ)


def test_streams_apart_have_no_terminal_and_a_limit() -> None:
    done = run_apart(["sh", "-c", "echo out; echo err >&2; cat; tty; exit 3"], timeout_s=60)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\nnot a tty\n", "err\n")
    began = time.monotonic()
    with pytest.raises(TimeoutExpired):
        run_apart(["sh", "-c", "sleep 300 | cat"], timeout_s=0.5)
    assert time.monotonic() - began < 30


def test_a_command_whose_parent_has_ended_already_does_not_start(tmp_path: Path) -> None:
    """A kill may come before the keeper is there to notice it."""
    with Popen(["true"]) as parent:
        parent.wait()
    keeper = Path(accel_ci.__file__).parent / "runner" / "keeper.py"
    command = [sys.executable, str(keeper), f"--parent={parent.pid}", "touch", str(tmp_path / "started")]
    assert Popen(command).wait(60) == 1
    assert not (tmp_path / "started").exists()


def test_a_command_with_two_streams_ends_with_the_process_that_runs_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    program = (
        "import sys; from accel_ci.process.run import run_apart\n"
        "run_apart(['sh', '-c', f'echo $$ > {sys.argv[1]}; sleep 300'], timeout_s=300)"
    )
    driver = os.posix_spawn(sys.executable, [sys.executable, "-c", program, str(file)], os.environ)
    pid = pid_in(file)
    os.kill(driver, signal.SIGKILL)
    os.waitpid(driver, 0)
    wait_for(lambda: is_gone(pid))
