"""A stranger's pull request: test files that attack the driver and each other, run beside innocent ones on each pool.

Whatever they do, nothing is written outside of the folder of their worker, no other file's result changes, and the run ends.
Each attack is told, or comes to nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_ci.model import Limits, SuiteSession
from accel_ci.runner.child_session import SESSION
from accel_ci_tests.fixtures.ground import Ground, Kind, outcomes
from accel_ci_tests.fixtures.suite import Write, batch

LIMITS = Limits(60, 60, 60, 60)

PRELUDE = '''
import contextlib, ctypes, json, os, pathlib, shutil, signal, sys, time

WORKER = os.getppid()
WORDS = open(f"/proc/{WORKER}/cmdline").read().split("\\0")
OUTSIDE = pathlib.Path(@OUTSIDE@)
ROOM = pathlib.Path(WORDS[WORDS.index("--scratch") + 1]) if "--scratch" in WORDS else pathlib.Path("/tmp")
ROUND = ROOM.parents[1] if ROOM != pathlib.Path("/tmp") else ROOM
NOW = "2026-11-28T00:00:00+00:00"

def attempt(test="test_victim.py::test_fails", **fields):
    """A line with the result of a test."""
    known = {"event": "attempt", "at": NOW, "suite": "suite", "test": test, "outcome": "passed", "duration_s": 1.0, **fields}
    return json.dumps(known).encode() + b"\\n"

def to_the_driver(data):
    """Write to the channel of the worker, if the system lets a test have its descriptors."""
    system = ctypes.CDLL(None, use_errno=True).syscall
    process = system(434, WORKER, 0)  # pidfd_open
    numbers = []
    with contextlib.suppress(OSError):
        numbers = [int(name) for name in os.listdir(f"/proc/{WORKER}/fd")]
    for number in numbers:
        descriptor = system(438, process, number, 0)  # pidfd_getfd
        with contextlib.suppress(OSError):
            if descriptor >= 0 and os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view):]
            os.close(descriptor)  # else this process never sees that the worker has closed its end
    time.sleep(2)

def to_the_worker(*messages):
    """Write to all pipes of this process: one leads to the worker."""
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("pipe:"):
                for message in messages:
                    os.write(number, json.dumps(message).encode() + b"\\n")
    time.sleep(2)

def replace(path, by):
    """Put something in the place of a file, as far as the system lets a test do that."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        by(path)

def own_record():
    return ROUND / "workers" / ROOM.name
'''

NAMES = (
    "log", "log.part", "events.jsonl", "events.jsonl.part", "alive", "child", "probe", "report.json", "report.json.part",
    "round_over", "round_over.part", "driver.socket", "driver.lock", "collected.json",
)  # fmt: skip

LINKS = f"""
def test_attack():
    for folder in (ROOM, ROUND, ROUND.parent, own_record(), ROUND / "rooms", ROUND / "charged"):
        for name in {NAMES!r}:
            replace(folder / name, lambda path: path.symlink_to(OUTSIDE / "precious"))
            replace(folder / ("new-" + name), lambda path: path.symlink_to(OUTSIDE / "new"))
    print("words of the attacker")
    assert False
"""

ATTACKS = {
    "links": LINKS,
    "record_is_a_pipe": "def test_attack(): replace(own_record() / 'events.jsonl', os.mkfifo)\n",
    "record_is_a_folder": "def test_attack(): replace(own_record() / 'events.jsonl', os.mkdir)\n",
    "record_is_gone": "def test_attack(): shutil.rmtree(own_record(), ignore_errors=True)\n",
    "claims_are_gone": "def test_attack(): shutil.rmtree(ROUND / 'claims', ignore_errors=True)\n",
    "claims_lead_outside": "def test_attack(): replace(ROUND / 'claims', lambda path: path.symlink_to(OUTSIDE))\n",
    "records_lead_outside": (
        "def test_attack():\n"
        "    for name in ('requeued', 'charged', 'round_over'):\n"
        "        replace(ROUND / name, lambda path: path.symlink_to(OUTSIDE))\n"
    ),
    "an_invented_worker": (
        "def test_attack():\n"
        "    for name in ('zzz', 'w9-9', 'w-', 'w1-x', '..w1-1'):\n"
        "        replace(ROUND / 'workers' / name / 'events.jsonl', lambda path: path.write_bytes(attempt()))\n"
    ),
    "a_process_to_end": (
        "def test_attack():\n"
        "    for folder in (ROOM, own_record()):\n"
        "        replace(folder / 'child', lambda path: path.write_text('@DRIVER@'))\n"
        "    os.kill(WORKER, signal.SIGKILL)\n"
        "    time.sleep(60)\n"
    ),
    "killed_at_import": "os.kill(WORKER, signal.SIGKILL)\ntime.sleep(20)\ndef test_attack(): pass\n",
    "a_room_full_of_links": (
        "def test_attack():\n"
        "    for path in list(ROOM.iterdir()):\n"
        "        replace(path, lambda path: path.symlink_to(OUTSIDE))\n"
    ),
    "another_files_result": (
        "def test_attack():\n"
        "    to_the_worker(dict(kind='result', test='test_victim.py::test_fails', outcome='passed', message=None))\n"
    ),
    "another_files_start": (
        "def test_attack(): to_the_worker("
        "dict(kind='start', test='test_victim.py::test_fails', number=2), "
        "dict(kind='result', test='test_victim.py::test_fails', outcome='passed', message=None))\n"
    ),
    "the_next_start": (
        "def test_attack(): to_the_worker("
        "dict(kind='result', test='test_the_next_start.py::test_attack', outcome='passed', message=None), "
        "dict(kind='start', test='test_victim.py::test_fails', number=2), "
        "dict(kind='result', test='test_victim.py::test_fails', outcome='passed', message=None))\n"
    ),
    "a_users_module": (
        "def test_attack():\n"
        "    import site\n"
        "    if os.environ.get('HOME') in ('/tmp', os.fspath(OUTSIDE.parent)):\n"
        "        folder = pathlib.Path(site.getusersitepackages())\n"
        "        folder.mkdir(parents=True, exist_ok=True)\n"
        "        (folder / 'usercustomize.py').write_text('raise SystemExit(9)')\n"
    ),
    **{
        f"the_driver_hears_{name}": f"def test_attack(): to_the_driver({data})\n"
        for name, data in {
            "another_files_result": "attempt()",
            "an_unknown_outcome": "attempt(outcome='splendid')",
            "no_number": "attempt(duration_s=float('nan'))",
            "an_endless_number": "attempt(duration_s=float('inf'))",
            "a_word_for_a_time": "attempt(at='yesterday', started_at='today')",
            "half_a_surrogate": "attempt('\\ud800')",
            "a_path": 'b\'{"ask":"take","batch":"../../x"}\\n\'',
            "no_request": "b'{\"ask\":[]}\\n'",
            "a_long_line": "b'x' * 50_000_000",
            "no_text": "bytes(range(256)) + b'\\n'",
        }.items()
    },
}
"""Each is a file with one test. `@OUTSIDE@` and `@DRIVER@` stand for a folder and a process that it shall not touch."""

IN_CONTAINERS = {
    "another_file": (
        "def test_attack():\n"
        "    victim = pathlib.Path(__file__).with_name('test_victim.py')\n"
        "    replace(victim, lambda path: path.write_text('def test_fails(): pass'))\n"
        "    replace(victim.with_name('conftest.py'), lambda path: path.write_text('raise SystemExit(9)'))\n"
    ),
}
"""On this machine itself, workers of the driver's own user can write the sources, which is told after the tests."""

REFUSED = ("another_files_result", "another_files_start", "the_next_start")
"""These are told in the message of the test, or of its file."""

VICTIM = """
import pytest
def test_passes(): pass
def test_fails(): assert False, "as it should"
def test_skips(): pytest.skip("not here")
"""


@pytest.fixture(params=["local", "docker", "kubernetes"])
def ground(request: pytest.FixtureRequest, open_ground: Callable[[Kind], Ground]) -> Ground:
    """Every pool that there is here."""
    return open_ground(request.param)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that is none of the tests' business."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("precious\n")
    return folder


def test_the_night_goes_on(ground: Ground, write: Write, outside: Path) -> None:
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, start_new_session=True
    )
    attacks = ATTACKS if ground.kind == "local" else {**ATTACKS, **IN_CONTAINERS}
    try:
        for name, body in attacks.items():
            text = (PRELUDE + body).replace("@OUTSIDE@", repr(str(outside))).replace("@DRIVER@", str(bystander.pid))
            write(f"test_{name}.py", text)
        write("test_victim.py", VICTIM)
        victims = [f"test_victim.py::test_{name}" for name in ("passes", "fails", "skips")]
        attackers = {name: f"test_{name}.py::test_attack" for name in attacks}
        batches = [batch(f"b-{name}", test) for name, test in attackers.items()] + [batch("b-victim", *victims)]
        session = SuiteSession(tuple(dict.fromkeys(each.file for each in batches)), isolate=True)
        environment = {"HOME": str(outside.parent)} if ground.kind == "local" else None
        result = ground.run(
            batches, sessions={"suite": session}, environment=environment, max_rounds=1, limits=LIMITS
        )  # fmt: skip
        assert bystander.poll() is None
    finally:
        bystander.communicate()
    found = {test: outcome for test, outcome in outcomes(result).items() if test != SESSION}
    assert found.keys() == {*victims, *attackers.values()}
    assert [found[test] for test in victims] == ["passed", "failed", "skipped"]
    own = {"pytest_cache"} if ground.kind == "local" else set()  # the test's own process can write there
    assert {path.name for path in outside.iterdir()} - own == {"precious"}
    assert (outside / "precious").read_text() == "precious\n"
    said = {attempt.test: attempt.message or "" for attempt in result.attempts}
    for name in REFUSED:
        assert found[attackers[name]] == "crashed" or any(name in line for line in result.offences), (name, said)
    for name, test in attackers.items():
        assert (
            "quarantine" in said[test]
            or found[test] != "crashed"
            or name in (*REFUSED, "a_process_to_end", "killed_at_import")
        ), said[test]
    is_first = ground.kind == "kubernetes"  # process of a container, which nobody in there can kill
    assert found[attackers["killed_at_import"]] == ("passed" if is_first else "crashed")
