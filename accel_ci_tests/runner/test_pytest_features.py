"""All features of pytest work: outcomes are pytest's own, whatever marker, class or plugin makes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from accel_ci.process.environment import clean_environment
from accel_ci_tests.fixtures.events import Work, attempts, outcomes
from accel_ci_tests.fixtures.suite import Write


def named(file: str, expected: dict[str, str]) -> dict[str, str]:
    """The same outcomes under whole node ids."""
    return {f"{file}::{name}": outcome for name, outcome in expected.items()}


def test_skips_and_expected_failures_of_all_kinds(work: Work, write: Write) -> None:
    write(
        "test_marks.py",
        """
        import pytest
        @pytest.mark.skip(reason="never")
        def test_skip(): assert False
        @pytest.mark.skipif("1 < 2", reason="always")
        def test_skipif(): assert False
        @pytest.mark.xfail(raises=ValueError)
        def test_other_error(): raise KeyError("k")
        @pytest.mark.xfail(raises=ValueError, reason="right")
        def test_right_error(): raise ValueError
        @pytest.mark.xfail(run=False, reason="it would crash")
        def test_not_even_run(): import os; os._exit(1)
        def test_from_within(): pytest.xfail("said so")
        @pytest.mark.xfail(condition=False, reason="not here")
        def test_condition(): pass
        @pytest.fixture
        def absent(): pytest.skip("no such device")
        def test_fixture_skips(absent): pass
        @pytest.fixture
        def expected_to_fail(): pytest.xfail("known of the fixture")
        def test_fixture_xfails(expected_to_fail): pass
        @pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.xfail), pytest.param(3, marks=pytest.mark.skip)])
        def test_each(x): assert x == 1
        """,
    )
    expected = {
        "test_skip": "skipped",
        "test_skipif": "skipped",
        "test_other_error": "failed",
        "test_right_error": "xfailed",
        "test_not_even_run": "xfailed",
        "test_from_within": "xfailed",
        "test_condition": "passed",
        "test_fixture_skips": "skipped",
        "test_fixture_xfails": "xfailed",
        "test_each[1]": "passed",
        "test_each[2]": "xfailed",
        "test_each[3]": "skipped",
    }
    events = work(list(named("test_marks.py", expected)))
    assert outcomes(events) == named("test_marks.py", expected)
    messages = {test: event.get("message") for test, event in attempts(events).items()}
    assert messages["test_marks.py::test_skipif"] == "always"
    assert messages["test_marks.py::test_from_within"] == "said so"
    assert messages["test_marks.py::test_fixture_skips"] == "no such device"


def test_classes_of_unittest(work: Work, write: Write) -> None:
    write(
        "test_unit.py",
        """
        import unittest

        class TestBroken(unittest.TestCase):
            @classmethod
            def setUpClass(cls): raise OSError("no device for the class")
            def test_1(self): pass
            def test_2(self): pass

        class TestUntidy(unittest.TestCase):
            @classmethod
            def tearDownClass(cls): raise OSError("left things about")
            def test_1(self): pass
            def test_2(self): pass

        @unittest.skip("not here")
        class TestSkipped(unittest.TestCase):
            def test_1(self): pass

        class TestMore(unittest.IsolatedAsyncioTestCase):
            async def test_async(self): self.assertTrue(False)
            @unittest.expectedFailure
            def test_unexpected(self): pass
            def test_skip(self): self.skipTest("not today")
            def test_subskip(self):
                with self.subTest(i=1): self.skipTest("one of them")
                with self.subTest(i=2): pass
        """,
    )
    expected = {
        "TestBroken::test_1": "error",
        "TestBroken::test_2": "error",
        "TestUntidy::test_1": "passed",
        "TestUntidy::test_2": "error",
        "TestSkipped::test_1": "skipped",
        "TestMore::test_async": "failed",
        "TestMore::test_unexpected": "failed",
        "TestMore::test_skip": "skipped",
        "TestMore::test_subskip": "passed",
    }
    events = work(list(named("test_unit.py", expected)))
    assert outcomes(events) == named("test_unit.py", expected)
    assert "no device for the class" in attempts(events)["test_unit.py::TestBroken::test_2"]["message"]


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="subtests are a plugin before pytest 9")
def test_subtests(work: Work, write: Write) -> None:
    write(
        "test_sub.py",
        """
        import pytest
        def test_some_fail(subtests):
            for i in range(4):
                with subtests.test("each", i=i):
                    assert i % 2 == 0
        def test_all_pass(subtests):
            for i in range(3):
                with subtests.test(i=i): pass
        def test_itself_fails(subtests):
            with subtests.test(): pass
            assert False, "after its subtests"
        @pytest.mark.xfail(reason="known")
        def test_expected(subtests):
            with subtests.test(): assert False
        """,
    )
    tests = [f"test_sub.py::test_{name}" for name in ("some_fail", "all_pass", "itself_fails", "expected")]
    events = work(tests)
    assert list(outcomes(events).values())[:3] == ["failed", "passed", "failed"]
    assert "2 subtests failed; the first: " in attempts(events)[tests[0]]["message"]
    assert "after its subtests" in attempts(events)[tests[2]]["message"]
    plain = pytest_summary(write, "test_sub.py::test_expected")
    assert ("1 failed" in plain) == (outcomes(events)[tests[3]] == "failed")


def pytest_summary(write: Write, *arguments: str) -> str:
    """The last line of a plain pytest in the suite's folder."""
    root = write("empty", "").parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=root, env=clean_environment({}), capture_output=True, text=True, timeout=60)
    return done.stdout.strip().splitlines()[-1]


def test_fixtures_of_every_scope_that_fail(work: Work, write: Write) -> None:
    write(
        "conftest.py",
        """
        import pytest
        for scope in ("session", "package", "module", "class"):
            def make(scope):
                @pytest.fixture(scope=scope, name=f"bad_{scope}")
                def bad(): raise OSError(f"no {scope}")
                return bad
            globals()[f"bad_{scope}"] = make(scope)
        """,
    )
    write("test_a.py", """
        def setup_module(): raise OSError("no module set-up")
        def test_1(): pass
        def test_2(): pass
        """)  # fmt: skip
    write("test_b.py", """
        class TestIt:
            def test_session(self, bad_session): pass
            def test_package(self, bad_package): pass
            def test_module(self, bad_module): pass
            def test_class(self, bad_class): pass
            def test_none(self): pass
        """)  # fmt: skip
    good = "test_b.py::TestIt::test_none"
    bad = [f"test_b.py::TestIt::test_{scope}" for scope in ("session", "package", "module", "class")]
    events = work(["test_a.py::test_1", "test_a.py::test_2"], [*bad, good])
    assert outcomes(events) == {
        "test_a.py::test_1": "error", "test_a.py::test_2": "error", **dict.fromkeys(bad, "error"), good: "passed",
    }  # fmt: skip
    assert "no session" in attempts(events)[bad[0]]["message"]


def test_a_session_fixture_that_fails_at_its_end_is_in_the_workers_events(work: Work, write: Write) -> None:
    write("conftest.py", """
        import pytest
        @pytest.fixture(scope="session")
        def device():
            yield
            raise OSError("the device did not close")
        """)  # fmt: skip
    write("test_a.py", "def test_1(device): pass\ndef test_2(device): pass\n")
    events = work(["test_a.py::test_1"], ["test_a.py::test_2"])
    assert outcomes(events) == {"test_a.py::test_1": "passed", "test_a.py::test_2": "passed", "(session)": "error"}
    message = attempts(events)["(session)"]["message"]
    assert "the device did not close" in message
    assert "after test_a.py::test_2" in message


def test_files_collected_in_part_and_files_expected_as_tests(work: Work, write: Write) -> None:
    """A part that cannot be collected costs only its file; a file can also be expected under its own name, as a test."""
    write("test_part.py", """
        import pytest
        class TestOdd:
            @pytest.mark.parametrize("y", [1])
            def test_wrong_name(self, x): pass
        def test_fine(): pass
        """)  # fmt: skip
    write("test_broken.py", "def test_1(: pass\n")
    write("test_skipped.py", "import pytest\npytest.importorskip('no_such_module_here')\ndef test_1(): pass\n")
    write("test_good.py", "def test_1(): pass\n")
    events = work(
        ["test_part.py::TestOdd::test_wrong_name[1]", "test_part.py::test_fine"],
        ["test_broken.py"],
        ["test_skipped.py::test_1"],
        ["test_good.py::test_1"],
    )
    by_test = attempts(events)
    assert by_test["test_broken.py"]["outcome"] == "error"
    assert "SyntaxError" in by_test["test_broken.py"]["message"]
    assert by_test["test_skipped.py::test_1"]["outcome"] == "skipped"
    assert "no_such_module_here" in by_test["test_skipped.py::test_1"]["message"]
    assert by_test["test_part.py::TestOdd::test_wrong_name[1]"]["outcome"] == "error"
    assert by_test["test_good.py::test_1"]["outcome"] == "passed"


def test_hooks_of_a_conftest_choose_mark_and_wrap(work: Work, write: Write) -> None:
    write(
        "conftest.py",
        """
        import pytest
        def pytest_collection_modifyitems(config, items):
            for item in items:
                if "marked" in item.name:
                    item.add_marker(pytest.mark.skip(reason="by the hook"))
            gone = [item for item in items if "gone" in item.name]
            config.hook.pytest_deselected(items=gone)
            items[:] = [item for item in items if item not in gone]
        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(item, call):
            outcome = yield
            if call.when == "call" and "turned" in item.name:
                outcome.get_result().outcome = "failed"
                outcome.get_result().longrepr = "turned by the hook"
        """,
    )
    write("test_a.py", "def test_marked(): pass\ndef test_gone(): pass\ndef test_turned(): pass\ndef test_plain(): pass\n")
    tests = [f"test_a.py::test_{name}" for name in ("marked", "gone", "turned", "plain")]
    events = work(tests)
    assert [outcomes(events)[test] for test in tests] == ["skipped", "not_run", "failed", "passed"]
    assert attempts(events)[tests[2]]["message"] == "turned by the hook"


@pytest.mark.parametrize(
    "arguments",
    [
        ["-p", "no:unittest", "-p", "no:doctest", "-p", "no:junitxml"],
        ["-p", "no:terminal"],
        ["-p", "no:faulthandler", "-p", "no:threadexception", "-p", "no:unraisableexception", "-p", "no:warnings"],
        ["-x"],
        ["--maxfail=1", "-q", "-v", "--tb=short", "-rA", "--durations=5"],
        ["-W", "error", "--strict-markers", "-o", "xfail_strict=true", "--import-mode=importlib"],
        ["--junitxml=report.xml", "-s"],
    ],
    ids=" ".join,
)
def test_arguments_of_pytest_change_no_count(work: Work, write: Write, arguments: list[str]) -> None:
    write("test_a.py", "def test_1(): assert False\ndef test_2(): assert False\ndef test_3(): pass\n")
    events = work(["test_a.py::test_1", "test_a.py::test_2"], ["test_a.py::test_3"], pytest_args=arguments)
    assert list(outcomes(events).values()) == ["failed", "failed", "passed"]


def test_an_option_that_pytest_does_not_know_is_reported(work: Work, write: Write) -> None:
    write("test_a.py", "def test_1(): pass\n")
    events = work(["test_a.py::test_1"], pytest_args=["--no-such-option"])
    assert outcomes(events) == {"test_a.py::test_1": "error"}
    assert "--no-such-option" in attempts(events)["test_a.py::test_1"]["message"]


def test_tests_that_would_stop_a_session_stop_only_themselves(work: Work, write: Write) -> None:
    write(
        "test_a.py",
        """
        import sys, threading, os
        def test_interrupt(): raise KeyboardInterrupt
        def test_exit(): sys.exit(4)
        def test_thread():
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
        def test_fork():
            if os.fork() == 0:
                return  # a copy of pytest goes on from here, and has nothing to tell
            os.wait()
        def test_chdir(tmp_path): os.chdir(tmp_path)
        def test_closed(): os.close(1); os.close(2)
        def test_last(): pass
        """,
    )
    tests = [f"test_a.py::test_{name}" for name in ("interrupt", "exit", "thread", "fork", "chdir", "closed", "last")]
    events = work(tests)
    found = outcomes(events)
    assert [found[test] for test in tests[:5]] == ["crashed", "failed", "passed", "passed", "passed"]
    assert found[tests[-1]] == "passed"
    assert set(found) == set(tests)


def test_the_hash_seed_and_the_working_folder_are_pytests_own(work: Work, write: Write, root: Path) -> None:
    write("test_a.py", f"import os\ndef test_1(): assert os.getcwd() == {str(root)!r}\ndef test_2(pytestconfig): "
          f"assert str(pytestconfig.rootpath) == {str(root)!r}\n")  # fmt: skip
    assert set(outcomes(work(["test_a.py::test_1", "test_a.py::test_2"])).values()) == {"passed"}
