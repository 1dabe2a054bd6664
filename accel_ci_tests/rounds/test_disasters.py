"""Disasters inside a suite: exactly the guilty test is blamed, and all others are what plain pytest says of them."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from accel_ci.model import Limits
from accel_ci.process.environment import clean_environment
from accel_ci.rounds.driver import PoolRun
from accel_ci.runner.child_session import SESSION
from accel_ci_tests.fixtures.checkout import ROOT
from accel_ci_tests.fixtures.ground import Ground, Kind
from accel_ci_tests.fixtures.suite import Write, batch

FILE = """
import atexit, contextlib, ctypes, datetime, faulthandler, gc, json, os, resource, shutil, signal, subprocess, sys, tempfile
import threading, time
import pytest

def to_the_worker(text):
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(number, text.encode("latin-1") + b"\\n")

def test_before(): print("before")
def test_guilty():
    {body}
def test_after(): print("after")
def test_fails(): assert 1 == 2
@pytest.mark.parametrize("n", range(3))
def test_more(n): pass
def test_skips(): pytest.skip("today")
@pytest.mark.xfail
def test_xfails(): assert False
def test_last(): pass
"""
OTHERS = ("before", "after", "fails", "more[0]", "more[1]", "more[2]", "skips", "xfails", "last")

ENDING = {
    "exit_0": ("os._exit(0)", "crashed"),
    "exit_in_a_thread": ("threading.Timer(0.1, os._exit, [1]).start(); time.sleep(1000)", "crashed"),
    "segfault": ("ctypes.string_at(0)", "crashed"),
    "abort": ("os.abort()", "crashed"),
    "kill_itself": ("os.kill(os.getpid(), signal.SIGKILL)", "crashed"),
    "end_its_group": ("os.killpg(0, signal.SIGTERM); time.sleep(1000)", "crashed"),
    "alarm": ("signal.alarm(1); time.sleep(1000)", "crashed"),
    "stack": ("sys.setrecursionlimit(10**9); x = []; [x := [x] for _ in range(100_000)]; repr(x)", "crashed"),
    "interrupt": ("raise KeyboardInterrupt", "crashed"),
    "pytest_exit": ("pytest.exit('enough', returncode=0)", "crashed"),
    "hang": ("time.sleep(1000)", "timeout"),
    "hang_deaf": ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    while True: pass", "timeout"),
    "stop_itself": ("os.kill(os.getpid(), signal.SIGSTOP)", "timeout"),
    "stop_its_group": ("os.killpg(0, signal.SIGSTOP)", "timeout"),
    "kill_parent": ("os.kill(os.getppid(), signal.SIGKILL)", "crashed"),
    "terminate_parent": ("os.kill(os.getppid(), signal.SIGTERM)", "crashed"),
    "interrupt_parent": ("os.kill(os.getppid(), signal.SIGINT)", "crashed"),
    "stop_parent": ("os.kill(os.getppid(), signal.SIGSTOP)", "timeout"),
    "junk": ("to_the_worker('junk')", "crashed"),
    "junk_number": ("to_the_worker('1')", "crashed"),
    "junk_depth": ("to_the_worker('[' * 100_000)", "crashed"),
    "junk_bytes": ("to_the_worker(''.join(map(chr, range(256))))", "crashed"),
    "unknown_kind": ("to_the_worker(json.dumps({'kind': 'done'}))", "crashed"),
    "unknown_test": (
        "to_the_worker(json.dumps({'kind': 'result', 'test': 'x', 'outcome': 'passed', 'message': None}))", "crashed",
    ),
    "nan": ("to_the_worker('{\"kind\": \"collected\", \"file\": \"x\", \"tests\": NaN}')", "crashed"),
    "wrong_type": ("to_the_worker(json.dumps({'kind': 'start', 'test': 1, 'number': '2'}))", "crashed"),
    "wanting": ("to_the_worker(json.dumps({'kind': 'want'}))", "crashed"),
    "half_a_line": ("os.write(1, b'x'); to_the_worker('{\"kind\": \"resu'[:-1]); os._exit(1)", "crashed"),
    "endless_line": ("[to_the_worker('x' * 50_000_000) for _ in range(2)]", "crashed"),
    "close_all": ("os.closerange(3, 4096)", "crashed"),
}  # fmt: skip
"""These end the process or its session."""

LEAVING = {
    "clock": ("time.time = time.monotonic = time.perf_counter = lambda: 1.9e9", "passed"),
    "sys_exit": ("sys.exit(3)", "failed"),
    "exit_of_a_thread": ("thread = threading.Thread(target=sys.exit); thread.start(); thread.join()", "passed"),
    "thread": ("threading.Thread(target=time.sleep, args=(1000,)).start()", "passed"),
    "fork_and_return": ("os.fork()", "passed"),
    "forks": ("for _ in range(20):\n        if os.fork() == 0: time.sleep(1000)", "passed"),
    "daemon": ("if os.fork() == 0: os.setsid(); os.fork(); time.sleep(1000)", "passed"),
    "long_message": ("pytest.fail('x' * 5_000_000)", "failed"),
    "longest_message": ("pytest.fail('x' * 50_000_000)", "failed"),
    "many_lines": ("pytest.fail(('x' * 999 + '\\n') * 50_000)", "failed"),
    "longest_comparison": ("assert 'x' * 50_000_000 == 'y' * 50_000_000", "failed"),
    "long_output": ("print('x' * 50_000_000); assert False", "failed"),
    "long_section": ("os.write(2, b'x' * 50_000_000); assert False", "failed"),
    "pause_parent": (
        "subprocess.run(f'kill -STOP {os.getppid()}; sleep 2; kill -CONT {os.getppid()}', shell=True, check=True)", "passed",
    ),
    "flood": ("[os.write(1, b'\\xff\\x00\\xfe' * 100_000) for _ in range(200)]; assert False", "failed"),
    "memory": ("resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**31)); bytearray(2**31)", "failed"),
    "files": ("resource.setrlimit(resource.RLIMIT_NOFILE, (24, 64)); [os.dup(0) for _ in range(64)]", "failed"),
    "folder": ("os.chdir(tempfile.mkdtemp()); os.rmdir(os.getcwd())", "passed"),
    "records": (
        "shutil.rmtree(os.path.join(os.path.dirname(open(f'/proc/{os.getppid()}/cmdline').read().split('\\0')[4]),"
        " 'workers'))", "passed",
    ),
    "no_stdout": ("sys.stdout = sys.stderr = None", "passed"),
    "signals": ("signal.signal(signal.SIGTERM, signal.SIG_IGN); faulthandler.disable(); gc.disable()", "passed"),
    "atexit": ("atexit.register(time.sleep, 1000)", "passed"),
}  # fmt: skip
"""These leave the process changed."""

SESSIONS = {"files": "error", "atexit": "timeout"}
"""Outcomes of what fails at the end of the session, as it does in plain pytest."""


def plain_pytest(root: Path) -> dict[str, str]:
    """Return the outcomes of all tests but the guilty ones."""
    report = root.parent / "plain.xml"
    command = [sys.executable, "-m", "pytest", "-k", "not guilty", f"--junitxml={report}", "-p", "no:cacheprovider", "."]
    subprocess.run(command, cwd=root, env=clean_environment({}), stdout=subprocess.DEVNULL, timeout=120, check=False)
    found = {}
    for case in ET.parse(report).iter("testcase"):
        kind = next((child.get("type") or child.tag for child in case), "passed")
        outcome = {"pytest.skip": "skipped", "pytest.xfail": "xfailed", "failure": "failed"}.get(kind, kind)
        found[f"{case.get('classname')}.py::{case.get('name')}"] = outcome
    return found


def run_beside_others(
    disasters: dict[str, tuple[str, str]], ground: Ground, write: Write, cards: list[str], at_end: str | None = None
) -> PoolRun:
    """Run a file with each disaster; check that only guilty tests differ from plain pytest's, and that times are true."""
    names = (OTHERS[0], "guilty", *OTHERS[1:])
    for name, (body, _) in disasters.items():
        write(f"test_{name}.py", FILE.format(body=body))
    batches = [batch(f"b-{name}", *(f"test_{name}.py::test_{each}" for each in names)) for name in disasters]
    began = datetime.now(timezone.utc)
    result = ground.run(batches, cards, max_rounds=1, limits=Limits(10, 60, 60, 60))
    ended = datetime.now(timezone.utc)
    found = {attempt.test: attempt.outcome for attempt in result.attempts}
    guilty = {f"test_{name}.py::test_guilty": outcome for name, (_, outcome) in disasters.items()}
    assert found == plain_pytest(ground.root) | guilty | ({SESSION: at_end} if at_end else {})
    for attempt in result.attempts:
        assert attempt.duration_s is None or 0 <= attempt.duration_s <= (ended - began).total_seconds()
        assert attempt.started_at is not None or attempt.test == SESSION
        assert attempt.started_at is None or began <= attempt.started_at <= ended
    return result


def test_tests_that_end_their_process(open_ground: Callable[[Kind], Ground], write: Write) -> None:
    result = run_beside_others(ENDING, open_ground("local"), write, ["0", "1", "2"])
    twice = sum(name.endswith("_parent") for name in ENDING) - 1  # a second worker proves it, but not for silence
    assert len(result.lost) == 2 * twice + 1, result.lost


@pytest.mark.parametrize("name", LEAVING)
def test_a_test_that_leaves_its_process_changed(name: str, open_ground: Callable[[Kind], Ground], write: Write) -> None:
    result = run_beside_others({name: LEAVING[name]}, open_ground("local"), write, ["0"], SESSIONS.get(name))
    assert result.lost == ()


KILL_ALL = """
    assert os.readlink("/proc/self/ns/pid") != "{outside}" and "pytest" in open("/proc/1/cmdline").read()
    os.kill(-1, signal.SIGKILL)
    time.sleep(1000)"""


def test_a_test_that_kills_all_it_can(
    open_ground: Callable[[Kind], Ground], write: Write, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    outside = in_own_namespace(request.node.nodeid, "--pid", "--fork", "--kill-child", "--mount-proc", scratch=tmp_path)
    if outside is not None:
        run_beside_others({"kill_all": (KILL_ALL.format(outside=outside), "crashed")}, open_ground("local"), write, ["0"])


FILL = """
    folder = open(f"/proc/{os.getppid()}/cmdline").read().split("\\0")[4]
    try:
        with open(os.path.join(folder, "filled"), "wb", 0) as file:
            while True: file.write(bytes(2**16))
    finally:
        os.remove(file.name)"""


def test_a_test_that_fills_the_disk_of_the_run(
    open_ground: Callable[[Kind], Ground], write: Write, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if in_own_namespace(request.node.nodeid, "--mount", scratch=tmp_path) is not None:
        ground = open_ground("local")
        ground.run_dir.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(ground.run_dir)], check=True, timeout=60)
        run_beside_others({"fill": (FILL, "failed")}, ground, write, ["0"])


def in_own_namespace(nodeid: str, *options: str, scratch: Path) -> str | None:
    """Run a test again by pytest in a namespace of its own, where it gets the name of the PID namespace outside.

    Outside it gets None, when the test has passed inside. Skip it where no namespace can be made.
    """
    if (outside := os.environ.get("ACCEL_CI_OUTSIDE")) is not None:
        return outside
    if subprocess.run(["unshare", *options, "true"], check=False, capture_output=True, timeout=60).returncode != 0:
        pytest.skip(f"no namespace can be made here (unshare {' '.join(options)})")
    again = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={scratch / 'inside'}", nodeid]
    environment = {**os.environ, "ACCEL_CI_OUTSIDE": str(Path("/proc/self/ns/pid").readlink())}
    done = subprocess.run(
        ["unshare", *options, *again], cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout
    return None
