"""A worker on its own: outcomes, fixtures across batches, and a child that crashes, hangs, floods or cannot start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from accel_ci_tests.fixtures.events import Work, attempts, of_kind, outcomes
from accel_ci_tests.fixtures.suite import Write


def test_every_outcome_of_pytest(work: Work, write: Write) -> None:
    write(
        "test_all.py",
        """
        import unittest
        import pytest

        def test_passed(): pass
        def test_failed(): assert 1 == 2, "one is not two"
        def test_skipped(): pytest.skip("not today")
        @pytest.mark.xfail(reason="known")
        def test_xfailed(): assert False
        @pytest.mark.xfail(reason="known")
        def test_xpassed(): pass
        @pytest.mark.xfail(strict=True)
        def test_xpassed_strictly(): pass
        @pytest.fixture
        def broken(): raise ValueError("no fixture")
        def test_setup(broken): pass
        @pytest.fixture
        def untidy():
            yield
            raise ValueError("left things about")
        def test_teardown(untidy): pass

        class TestUnit(unittest.TestCase):
            def test_sub(self):
                for i in range(3):
                    with self.subTest(i=i):
                        self.assertNotEqual(i, 1)
            def test_unit(self): pass
            @unittest.expectedFailure
            def test_expected(self): self.fail()
        """,
    )
    expected = {
        "test_passed": "passed",
        "test_failed": "failed",
        "test_skipped": "skipped",
        "test_xfailed": "xfailed",
        "test_xpassed": "xpassed",
        "test_xpassed_strictly": "failed",
        "test_setup": "error",
        "test_teardown": "error",
        "TestUnit::test_sub": "failed",
        "TestUnit::test_unit": "passed",
        "TestUnit::test_expected": "xfailed",
        "test_gone": "not_run",
    }
    events = work([f"test_all.py::{name}" for name in expected])
    assert outcomes(events) == {f"test_all.py::{name}": outcome for name, outcome in expected.items()}
    by_test = attempts(events)
    failed = by_test["test_all.py::test_failed"]
    assert "one is not two" in failed["message"].splitlines()[0]
    started = events[0]
    assert (started["event"], started["round"], started["card"], started["worker"]) == (
        "worker_started",
        1,
        "card:0",
        "w0-0",
    )
    assert failed["suite"] == "suite"
    assert failed["started_at"].endswith("+00:00")
    assert failed["duration_s"] >= 0
    assert by_test["test_all.py::test_skipped"]["message"] == "not today"
    assert "no longer finds this test" in by_test["test_all.py::test_gone"]["message"]
    assert len(of_kind(events, "started")) == len(expected) - 1
    assert events[-1]["event"] == "worker_finished"
    assert events[-1]["reason"] == "done"


ODD = ["a b", "é", "x::y", "[q]", "back\\slash", "new\nline", "nul\0", "\ud800", "", "🙂", "../up", "'\"", "a" * 300]


def test_odd_ids_come_through(work: Work, write: Write, runner: Path, root: Path, tmp_path: Path) -> None:
    write("test_odd.py", f"import pytest\n@pytest.mark.parametrize('x', {ODD!a})\ndef test_p(x): pass\n")
    command = [sys.executable, str(runner), "collect", "--root", str(root), "--output", "out.json", "."]
    subprocess.run(command, cwd=tmp_path, timeout=60, check=True)
    tests = json.loads((tmp_path / "out.json").read_text("utf-8"))["tests"]
    assert len(tests) == len(ODD)
    assert outcomes(work(tests)) == dict.fromkeys(tests, "passed")


def test_ids_that_are_not_escaped_come_through(work: Work, write: Write) -> None:
    write("test_odd.py", "import pytest\n@pytest.mark.parametrize('x', ['é', '🙂', 'a\\\\b'])\ndef test_p(x): pass\n")
    write("pytest.ini", "[pytest]\ndisable_test_id_escaping_and_forfeit_all_rights_to_community_support = true\n")
    tests = [f"test_odd.py::test_p[{value}]" for value in ("é", "🙂", "a\\b")]
    assert outcomes(work(tests)) == dict.fromkeys(tests, "passed")


def test_a_file_is_collected_once_and_fixtures_live_across_batches(work: Work, write: Write, tmp_path: Path) -> None:
    log = tmp_path / "log"
    write(
        "pkg/conftest.py",
        f"""
        import pytest

        def note(word):
            with open({str(log)!r}, "a") as file:
                file.write(word + "\\n")

        @pytest.fixture(scope="session")
        def session():
            note("session up")
            yield
            note("session down")
        @pytest.fixture(scope="module")
        def module(request):
            note("up " + request.node.nodeid)
            yield
            note("down " + request.node.nodeid)
        """,
    )
    body = "def test_1(session, module): pass\ndef test_2(session, module): pass\ndef test_3(session, module): pass\n"
    write("pkg/test_a.py", body)
    write("pkg/deeper/test_b.py", body)
    events = work(
        ["pkg/test_a.py::test_1"],
        ["pkg/test_a.py::test_2", "pkg/test_a.py::test_3"],
        ["pkg/deeper/test_b.py::test_1", "pkg/deeper/test_b.py::gone"],
        ["pkg/deeper/test_b.py::test_2"],
        ["pkg/deeper/test_b.py::gone_too"],
    )
    assert list(outcomes(events).values()).count("passed") == 5
    assert len(of_kind(events, "child_started")) == 1
    assert len(of_kind(events, "collected")) == 2
    assert log.read_text().splitlines() == [
        "session up",
        "up pkg/test_a.py",
        "down pkg/test_a.py",
        "up pkg/deeper/test_b.py",
        "down pkg/deeper/test_b.py",
        "session down",
    ] or log.read_text().splitlines()[1:3] == ["up pkg/deeper/test_b.py", "down pkg/deeper/test_b.py"]


def test_a_file_that_cannot_be_collected_or_is_skipped(work: Work, write: Write) -> None:
    write("test_bad.py", "import there_is_no_such_module\n")
    write("test_skip.py", "import pytest\npytest.skip('no such device', allow_module_level=True)\n")
    write("sub/test_well.py", "def test_good(): pass\n")
    write("test_good.py", "def test_good(): pass\n")
    events = work(
        ["sub/test_well.py::test_good"],
        ["test_bad.py::test_1", "test_bad.py::test_2"],
        ["test_skip.py::test_1"],
        ["test_missing.py::test_1"],
        ["test_good.py::test_good"],
    )
    assert outcomes(events) == {
        "sub/test_well.py::test_good": "passed",
        "test_bad.py::test_1": "error",
        "test_bad.py::test_2": "error",
        "test_skip.py::test_1": "skipped",
        "test_missing.py::test_1": "not_run",
        "test_good.py::test_good": "passed",
    }
    by_test = attempts(events)
    assert "there_is_no_such_module" in by_test["test_bad.py::test_2"]["message"]
    assert by_test["test_skip.py::test_1"]["message"] == "no such device"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("os._exit(7)", "exit code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("pytest.exit('enough')", "enough"),
    ],
)
def test_a_crash_costs_only_the_running_test(work: Work, write: Write, body: str, reason: str) -> None:
    write(
        "test_crash.py",
        f"""
        import os, signal
        import pytest
        def test_1(): pass
        def test_crash():
            print("the last words")
            {body}
        def test_2(): pass
        """,
    )
    events = work([f"test_crash.py::{name}" for name in ("test_1", "test_crash", "test_2")])
    assert list(outcomes(events).values()) == ["passed", "crashed", "passed"]
    crashed = attempts(events)["test_crash.py::test_crash"]
    assert reason in crashed["message"]
    assert crashed["output_tail"].startswith("the last words")
    assert len(of_kind(events, "child_started")) == 2


def test_a_hang_is_ended_with_the_place_where_it_hung(work: Work, write: Write) -> None:
    write(
        "test_hang.py",
        """
        import time
        def test_hang():
            while True:
                time.sleep(1)
        def test_after(): pass
        """,
    )
    events = work(["test_hang.py::test_hang", "test_hang.py::test_after"], test_timeout_s=5.0)
    assert list(outcomes(events).values()) == ["timeout", "passed"]
    hung = attempts(events)["test_hang.py::test_hang"]
    assert "did not end within 5 s" in hung["message"]
    assert "in test_hang" in hung["output_tail"]


def test_silence_ends_a_test_and_output_does_not_count_as_silence(work: Work, write: Write) -> None:
    write(
        "test_quiet.py",
        """
        import time
        def test_noisy():
            for _ in range(14):
                print("still here")
                time.sleep(0.5)
        def test_quiet(): time.sleep(1000)
        """,
    )
    events = work(["test_quiet.py::test_noisy", "test_quiet.py::test_quiet"], silence_s=5.0)
    assert list(outcomes(events).values()) == ["passed", "timeout"]


@pytest.mark.parametrize("limit", ["test_timeout_s", "silence_s"])
def test_a_suspended_machine_uses_up_no_limit(work: Work, write: Write, limit: str) -> None:
    write(
        "test_still.py",
        """
        import os, subprocess, sys
        CODE = '''if True:
            import os, signal, sys, time
            for how, seconds in ((signal.SIGSTOP, 4), (signal.SIGCONT, 0)):
                for pid in sys.argv[1:]:
                    os.kill(int(pid), how)
                time.sleep(seconds)
        '''
        def test_still():
            subprocess.run([sys.executable, "-c", CODE, str(os.getppid()), str(os.getpid())], check=True)
        """,
    )
    assert outcomes(work(["test_still.py::test_still"], **{limit: 3.0})) == {"test_still.py::test_still": "passed"}


def test_a_worker_that_is_ended_records_all_tests_but_the_running_one(work: Work, write: Write) -> None:
    write(
        "test_end.py",
        """
        import os, signal, time
        def test_1(): pass
        def test_2(): pass
        def test_3(): print("of this test"); assert False
        def test_4():
            os.kill(os.getppid(), signal.SIGTERM)
        def test_5(): pass
        """,
    )
    tests = [f"test_end.py::test_{number}" for number in range(1, 6)]
    events = work(tests[:2], tests[2:], status=128 + signal.SIGTERM)
    assert outcomes(events) == dict(zip(tests, ["passed", "passed", "failed"], strict=False))
    by_test = attempts(events)
    assert by_test[tests[2]]["output_tail"] == "--- Captured stdout call ---\nof this test"
    assert [event["test"] for event in of_kind(events, "started")] == tests[:4]
    assert (events[-1]["event"], events[-1]["reason"]) == ("worker_finished", "stopped")


def test_a_flood_of_output_is_cut_to_its_end(work: Work, write: Write) -> None:
    write(
        "test_flood.py",
        """
        import os
        def test_before(): print("of another test")
        def test_flood():
            for _ in range(300):
                os.write(1, b"x" * 65536)
            print("the end")
            assert False
        def test_after():
            print("of this test")
            assert False
        """,
    )
    events = work([f"test_flood.py::test_{name}" for name in ("before", "flood", "after")])
    by_test = attempts(events)
    tail = by_test["test_flood.py::test_flood"]["output_tail"]
    assert len(tail) > 16_000
    assert tail.endswith("the end")
    assert by_test["test_flood.py::test_after"]["output_tail"] == "--- Captured stdout call ---\nof this test"


def test_output_that_is_no_text_is_kept_to_its_end(work: Work, write: Write) -> None:
    write(
        "test_bytes.py",
        """
        import os, sys
        def test_before(): print("before")
        def test_flood():
            for _ in range(50): os.write(1, b"\\xff\\x00\\xfe" * 333_333)
            os.write(1, b"\\nlast words of the flood \\xe9\\n")
            assert 0
        def test_latin():
            sys.stdout.buffer.write("caf\\xe9".encode("latin-1"))
            sys.stdout.flush()
            assert 0
        def test_line_without_end():
            os.write(1, b"x" * 20_000_000)
            assert 0
        def test_after(): print("after")
        """,
    )
    events = work([f"test_bytes.py::test_{name}" for name in ("before", "flood", "latin", "line_without_end", "after")])
    assert list(outcomes(events).values()) == ["passed", "failed", "failed", "failed", "passed"]
    by_test = attempts(events)
    assert "last words of the flood \ufffd" in by_test["test_bytes.py::test_flood"]["output_tail"]
    assert "caf\ufffd" in by_test["test_bytes.py::test_latin"]["output_tail"]
    assert all(len(event.get("output_tail") or "") <= 16 * 1024 for event in by_test.values())


def test_descriptors_and_limits_that_a_test_uses_up_are_missed_as_in_plain_pytest(work: Work, write: Write) -> None:
    write(
        "test_limits.py",
        """
        import os, resource, subprocess, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        def test_1(): pass
        def test_eat():
            global kept
            kept = []
            try:
                while True: kept.append(os.open(os.devnull, os.O_RDONLY))
            except OSError: pass
        def test_open(): open(__file__).close()
        def test_after(): pass
        def test_start(): subprocess.run([sys.executable, "-c", "pass"], check=True)
        def test_stack():
            resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))
            sys.setrecursionlimit(10**9)
            nested = []
            for _ in range(10**6): nested = [nested]
            repr(nested)
        def test_last(): open(__file__).close()
        """,
    )
    tests = [f"test_limits.py::test_{name}" for name in ("1", "eat", "open", "after", "start", "stack", "last")]
    expected = ["passed", "passed", "failed", "passed", "failed", "crashed", "passed"]
    assert outcomes(work(tests)) == dict(zip(tests, expected, strict=True))


def test_children_and_threads_of_tests_disturb_nothing(work: Work, write: Write) -> None:
    write(
        "test_children.py",
        """
        import multiprocessing, os, signal, subprocess, sys, threading, time
        def answer(queue): queue.put(sys.argv[0])
        def run(kind):
            context = multiprocessing.get_context(kind)
            queue = context.Queue()
            process = context.Process(target=answer, args=(queue,))
            process.start()
            queue.get(timeout=30)
            process.join(30)
            assert process.exitcode == 0
        def test_spawn(): run("spawn")
        def test_forkserver(): run("forkserver")
        def test_fork(): run("fork")
        def test_thread(): threading.Thread(target=time.sleep, args=(3600,)).start()
        def test_signals():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        """,
    )
    tests = [f"test_children.py::test_{name}" for name in ("spawn", "forkserver", "fork", "thread", "signals")]
    assert outcomes(work(tests)) == dict.fromkeys(tests, "passed")


def test_a_clock_that_tests_turn_changes_no_time(work: Work, write: Write) -> None:
    write(
        "test_clock.py",
        """
        import datetime, sys, time, pytest
        class Frozen(datetime.datetime):
            @classmethod
            def now(cls, tz=None): return cls(2030, 2, 3, tzinfo=tz)
        @pytest.fixture(scope="module")
        def frozen():  # as freezegun does it
            for module in list(sys.modules.values()):
                for name, value in list(vars(module).items()) if hasattr(module, "__dict__") else ():
                    if value is datetime.datetime: setattr(module, name, Frozen)
                    if value in (time.time, time.monotonic, time.perf_counter): setattr(module, name, lambda: 1.9e9)
        def test_1(frozen): assert datetime.datetime.now().year == 2030
        def test_2(frozen): time.sleep(0.2)
        def test_3(): pass
        """,
    )
    began = datetime.now(timezone.utc)
    events = work(["test_clock.py::test_1"], ["test_clock.py::test_2", "test_clock.py::test_3"])
    ended = datetime.now(timezone.utc)
    assert list(outcomes(events).values()) == ["passed"] * 3
    by_test = attempts(events)
    assert all(0 <= event["duration_s"] <= (ended - began).total_seconds() for event in by_test.values())
    assert by_test["test_clock.py::test_2"]["duration_s"] >= 0.2
    moments = [event["at"] for event in events] + [event["started_at"] for event in by_test.values()]
    assert all(began <= datetime.fromisoformat(moment) <= ended for moment in moments)
    assert of_kind(events, "collected")[0]["seconds"] < 60


def test_leftover_processes_are_ended(work: Work, write: Write, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    write(
        "test_left.py",
        f"""
        import os, subprocess, sys
        def test_left():
            for alone in (False, True):
                sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
                process = subprocess.Popen(sleeper, start_new_session=alone)
                with open({str(pids)!r}, "a") as file:
                    file.write(f"{{process.pid}} ")
            os._exit(1)
        def test_after():
            for pid in open({str(pids)!r}).read().split():
                try:
                    os.kill(int(pid), 0)
                except ProcessLookupError:
                    continue
                raise AssertionError(f"{{pid}} is there when the next child runs")
        """,
    )
    events = work(["test_left.py::test_left", "test_left.py::test_after"])
    if sys.platform == "linux":
        assert list(outcomes(events).values()) == ["crashed", "passed"]
    assert len(pids.read_text().split()) == 2


def test_a_file_that_kills_pytest_while_it_is_collected(work: Work, write: Write) -> None:
    write("test_killer.py", "import os\nprint('importing')\nos._exit(9)\n")
    write("test_good.py", "def test_good(): pass\n")
    events = work(["test_killer.py::test_1", "test_killer.py::test_2"], ["test_good.py::test_good"])
    assert outcomes(events) == {
        "test_killer.py::test_1": "error",
        "test_killer.py::test_2": "error",
        "test_good.py::test_good": "passed",
    }
    assert "exit code 9" in attempts(events)["test_killer.py::test_1"]["message"]


def test_such_a_file_costs_no_test_of_another_file_in_its_batch(work: Work, write: Write) -> None:
    write("test_killer.py", "import os\nprint('importing')\nos._exit(9)\n")
    write("test_good.py", "def test_0(): pass\ndef test_1(): pass\ndef test_2(): pass\n")
    write("test_other.py", "def test_3(): pass\n")
    events = work(
        ["test_killer.py::test_1", "test_good.py::test_1", "test_killer.py::test_2", "test_good.py::test_2"],
        ["test_killer.py::test_3"],
        ["test_good.py::test_0"],
        ["test_other.py::test_3", "test_killer.py::test_4"],
    )
    expected = {f"test_killer.py::test_{number}": "error" for number in (1, 2, 3, 4)}
    assert outcomes(events) == expected | {
        **{f"test_good.py::test_{number}": "passed" for number in (0, 1, 2)}, "test_other.py::test_3": "passed",
    }  # fmt: skip
    assert "exit code 9" in attempts(events)["test_killer.py::test_4"]["message"]


def test_a_broken_conftest_costs_only_its_folder(work: Work, write: Write) -> None:
    write("bad/conftest.py", "raise RuntimeError('no device here')\n")
    write("bad/test_bad.py", "def test_1(): pass\ndef test_2(): pass\n")
    write("good/test_a.py", "def test_a(): pass\n")
    write("good/test_b.py", "def test_b(): pass\n")
    events = work(
        ["bad/test_bad.py::test_1"], ["good/test_a.py::test_a"], ["bad/test_bad.py::test_2"], ["good/test_b.py::test_b"]
    )
    assert sorted(outcomes(events).values()) == ["error", "error", "passed", "passed"]
    assert "no device here" in attempts(events)["bad/test_bad.py::test_2"]["message"]


def test_a_session_fixture_that_fails(work: Work, write: Write) -> None:
    write("conftest.py", "import pytest\n@pytest.fixture(scope='session')\ndef device(): raise OSError('no device')\n")
    write("test_a.py", "def test_1(device): pass\ndef test_2(device): pass\ndef test_3(): pass\n")
    events = work(["test_a.py::test_1"], ["test_a.py::test_2", "test_a.py::test_3"])
    assert list(outcomes(events).values()) == ["error", "error", "passed"]


PROBE = """
import json, os, sys
bad = os.path.exists({marker!r})
print("some noise")
print(json.dumps({{"reason": "bad" if bad else "good"}}))
sys.exit(bad)
"""


def test_probes_before_after_a_crash_and_at_the_end(work: Work, write: Write, tmp_path: Path) -> None:
    write("test_a.py", "import os\ndef test_1(): os._exit(1)\ndef test_2(): pass\n")
    probe = ["python", "-c", PROBE.format(marker=str(tmp_path / "none"))]
    events = work(["test_a.py::test_1", "test_a.py::test_2"], probe=probe)
    assert [event["event"] for event in events if event["event"] in ("probe", "attempt")] == [
        "probe", "attempt", "probe", "attempt", "probe",
    ]  # fmt: skip
    assert {(event["healthy"], event["reason"]) for event in of_kind(events, "probe")} == {(True, "good")}


def test_an_unhealthy_card_stops_the_worker(work: Work, write: Write, tmp_path: Path) -> None:
    marker = tmp_path / "bad"
    write("test_a.py", f"import os\ndef test_1(): open({str(marker)!r}, 'w'); os._exit(1)\ndef test_2(): pass\n")
    probe = ["python", "-c", PROBE.format(marker=str(marker))]
    events = work(["test_a.py::test_1", "test_a.py::test_2"], probe=probe)
    assert outcomes(events) == {"test_a.py::test_1": "crashed"}
    assert [event["healthy"] for event in of_kind(events, "probe")] == [True, False]
    assert events[-1]["reason"] == "unhealthy_card"


def test_several_failures_start_a_probe_beside_the_tests(work: Work, write: Write, tmp_path: Path) -> None:
    marker = tmp_path / "bad"
    write(
        "test_a.py",
        f"""
        import pytest, time
        @pytest.mark.parametrize("n", range(400))
        def test_n(n):
            if n == 2:
                open({str(marker)!r}, "w")
            time.sleep(0.05)
            assert n < 0
        """,
    )
    probe = ["python", "-c", PROBE.format(marker=str(marker))]
    events = work([f"test_a.py::test_n[{n}]" for n in range(400)], probe=probe)
    assert 3 <= len(attempts(events)) < 400
    assert events[-1]["reason"] == "unhealthy_card"


def test_a_probe_that_hangs_means_an_unhealthy_card_and_is_logged(work: Work, write: Write, tmp_path: Path) -> None:
    write("test_a.py", "def test_1(): pass\n")
    events = work(["test_a.py::test_1"], probe=["python", "-c", "import time; time.sleep(1000)"], probe_timeout_s=7.0)
    assert of_kind(events, "attempt") == []
    assert "did not end within 7 s" in of_kind(events, "probe")[0]["reason"]
    assert (tmp_path / "worker.log").read_text() == "waiting for the health probe to end\n"


def test_tests_see_no_more_open_files_than_pytest_gives(work: Work, write: Write) -> None:
    write(
        "test_a.py",
        """
        import os, subprocess, sys
        def test_1():
            assert sys.argv == ["pytest"]
            assert not any(entry.endswith("runner.pyz") for entry in sys.path)
            code = "import os; print(len([n for n in os.listdir('/proc/self/fd')]))"
            if os.path.isdir("/proc/self/fd"):
                count = subprocess.check_output([sys.executable, "-c", code], close_fds=False)
                assert int(count) <= 4
        """,
    )
    assert outcomes(work(["test_a.py::test_1"])) == {"test_a.py::test_1": "passed"}


def test_after_a_crash_nothing_is_collected_again(work: Work, write: Write) -> None:
    write("counted.py", "import itertools\nNUMBERS = itertools.count()\n")
    for letter in "ab":
        write(
            f"test_{letter}.py",
            f"""
            import os, counted
            NUMBER = next(counted.NUMBERS)
            STATE = []
            def test_1(): STATE.append(1); print("the last words"); os.kill(os.getpid(), 9)
            def test_2(): assert STATE == [] and NUMBER == {int(letter == "b")}
            def test_3(): os._exit(0)
            def test_4(): assert STATE == []; print("of this test"); assert False
            """,
        )
    tests = [f"test_{letter}.py::test_{number}" for letter in "ab" for number in range(1, 5)]
    events = work(tests[:4], tests[4:])
    assert list(outcomes(events).values()) == ["crashed", "passed", "crashed", "failed"] * 2
    assert [event["file"] for event in of_kind(events, "collected")] == ["test_a.py", "test_b.py"]
    assert len({event["pid"] for event in of_kind(events, "child_started")}) == 5
    by_test = attempts(events)
    assert by_test["test_b.py::test_1"]["output_tail"] == "the last words\n"
    assert by_test["test_b.py::test_4"]["output_tail"] == "--- Captured stdout call ---\nof this test"


@pytest.mark.parametrize(
    "at_import",
    ["threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()", "DEVICE = open('/dev/fuse')"],
)
def test_a_process_with_a_thread_or_a_device_is_not_copied(work: Work, write: Write, at_import: str) -> None:
    if "/dev/" in at_import and not os.access("/dev/fuse", os.R_OK):
        pytest.skip("/dev/fuse cannot be opened here: it stands for an accelerator's device")
    write(
        "test_a.py",
        f"""
        import os, threading, time
        {at_import}
        def test_1(): os._exit(0)
        def test_2(): pass
        """,
    )
    events = work(["test_a.py::test_1", "test_a.py::test_2"])
    assert list(outcomes(events).values()) == ["crashed", "passed"]
    assert len(of_kind(events, "collected")) == 2
