"""Small suites of tests of all kinds, by name: their files, and the arguments that pytest gets beside their folder.

Each is run by plain pytest and by a worker in `test_like_pytest.py`. They use pytest alone, in the way of suites that others
wrote: options, ini-files, hooks, fixtures of all scopes, collectors, unittest, doctest.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SmallSuite:
    """The files of a suite by name, and pytest's arguments; `since` is the first pytest that knows what it uses."""

    files: dict[str, str]
    arguments: tuple[str, ...] = ()
    since: tuple[int, int] = (7, 4)


def _one(text: str, *arguments: str, since: tuple[int, int] = (7, 4), **more: str) -> SmallSuite:
    """A suite of one test file and other files, whose names have `__` in place of a dot."""
    return SmallSuite(
        {"test_it.py": text, **{name.replace("__", "."): each for name, each in more.items()}}, arguments, since
    )


SUITES: dict[str, SmallSuite] = {
    "comparisons": _one("""
        import pytest
        def test_dict(): assert {"w": 1, "h": 2} == {"w": 1, "h": 3}
        def test_list(): assert [1, 2, 3] == [1, 2, 4]
        def test_text(): assert "one\\ntwo\\n" == "one\\nthree\\n"
        def test_set(): assert {1} == {2}
        def test_approx(): assert [0.1, 0.2] == pytest.approx([0.1, 0.3])
        def test_in(): assert "x" in "abc"
        def test_caught():
            with pytest.raises(AssertionError, match="assert 1 == 2"): assert 1 == 2
        """),
    "marks": _one("""
        import pytest
        @pytest.mark.skip(reason="never")
        def test_skip(): assert False
        @pytest.mark.skipif("1 < 2", reason="always")
        def test_skipif(): assert False
        @pytest.mark.xfail(raises=ValueError)
        def test_other_error(): raise KeyError("k")
        @pytest.mark.xfail(reason="known")
        def test_known(): assert False
        @pytest.mark.xfail(reason="known")
        def test_fixed(): pass
        @pytest.mark.xfail(strict=True, reason="known")
        def test_fixed_strictly(): pass
        @pytest.mark.xfail(run=False)
        def test_not_run(): import os; os._exit(1)
        def test_imperative(): pytest.xfail("in the test")
        """),
    "strict_by_ini": _one(
        "import pytest\n@pytest.mark.xfail\ndef test_fixed(): pass\n", pytest__ini="[pytest]\nxfail_strict = true\n"
    ),
    "teardown_errors": _one("""
        import pytest
        @pytest.fixture
        def a(): yield; raise OSError("of the test")
        @pytest.fixture(scope="class")
        def b(): yield; raise OSError("of the class")
        @pytest.fixture(scope="module")
        def c(): yield; raise OSError("of the module")
        def test_a(a): pass
        class TestB:
            def test_1(self, b): pass
            def test_2(self, b): assert False
        def test_c(c): pass
        """),
    "session_teardown": _one(
        "def test_1(device): pass\ndef test_2(device): pass\n",
        conftest__py="""
        import pytest
        @pytest.fixture(scope="session")
        def device(): yield; raise OSError("the device did not close")
        """,
    ),
    "setup_errors": _one("""
        import pytest
        @pytest.fixture
        def broken(): raise OSError("no device")
        @pytest.fixture
        def absent(): pytest.skip("no such card")
        def test_broken(broken): pass
        def test_absent(absent): pass
        def test_unknown(nothing): pass
        """),
    "scopes": _one("""
        import pytest
        LOG = []
        @pytest.fixture(scope="module", params=["x", "y"])
        def m(request): LOG.append("+" + request.param); yield request.param; LOG.append("-" + request.param)
        @pytest.fixture(scope="class", autouse=True)
        def c(): LOG.append("class"); yield
        class TestA:
            def test_1(self, m): assert m in "xy"
            def test_2(self, m): assert LOG.count("+x") == 1
        def test_log(): assert LOG[0] == "class"
        def test_finalized(request): assert "-x" in LOG
        """),
    "xunit_style": _one("""
        STATE = []
        def setup_module(module): STATE.append("module")
        def teardown_module(module): STATE.append("end")
        class TestA:
            @classmethod
            def setup_class(cls): STATE.append("class")
            def setup_method(self): STATE.append("method")
            def test_1(self): assert STATE == ["module", "class", "method"]
            def test_2(self): assert STATE.count("method") == 2
            def teardown_method(self): assert len(STATE) < 4, "too many"
        """),
    "unittest": _one("""
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
        class TestMore(unittest.IsolatedAsyncioTestCase):
            async def test_async(self): self.assertEqual([1], [2])
            @unittest.expectedFailure
            def test_unexpected(self): pass
            @unittest.expectedFailure
            def test_expected(self): self.fail()
            def test_skip(self): self.skipTest("not today")
            def test_cleanup(self): self.addCleanup(self.fail, "in the clean-up")
        @unittest.skip("not here")
        class TestSkipped(unittest.TestCase):
            def test_1(self): pass
        """),
    "subtests_of_unittest": _one(
        """
        import unittest
        class TestSub(unittest.TestCase):
            def test_some(self):
                for n in range(3):
                    with self.subTest(n=n): self.assertNotEqual(n, 1)
            def test_none(self):
                with self.subTest(n=0): pass
        """,
        since=(9, 0),
    ),
    "subtests": _one(
        """
        def test_some(subtests):
            for n in range(3):
                with subtests.test(n=n): assert n != 1
        def test_good(subtests):
            with subtests.test(n=1): pass
        """,
        since=(9, 0),
    ),
    "doctests": SmallSuite(
        {
            "pytest.ini": "[pytest]\naddopts = --doctest-modules --doctest-glob=*.rst\n",
            "lib/mod.py": 'def one():\n    """\n    >>> one()\n    1\n    >>> one() + 1\n    3\n    """\n    return 1\n',
            "guide.rst": "Guide\n=====\n\n>>> 1 + 1\n2\n",
            "wrong.rst": ">>> 1 / 0\n0\n",
        }
    ),
    "doctests_continued": SmallSuite(
        {
            "pytest.ini": "[pytest]\naddopts = --doctest-glob=*.txt\ndoctest_optionflags = ELLIPSIS\n",
            "a.txt": ">>> object()\n<object object at 0x...>\n",
            "b.txt": ">>> import doctest  # doctest: +SKIP\n",
        }
    ),
    "custom_items": SmallSuite(
        {
            "conftest.py": """
            import pytest
            class Steps(pytest.File):
                def collect(self):
                    for number, line in enumerate(self.path.read_text().split()):
                        yield Step.from_parent(self, name=f"step{number}", word=line)
            class Step(pytest.Item):
                def __init__(self, *, word, **more): super().__init__(**more); self.word = word
                def runtest(self): assert self.word == "good"
                def repr_failure(self, excinfo): return f"the word is {self.word}"
                def reportinfo(self): return self.path, 0, self.name
            def pytest_collect_file(parent, file_path):
                if file_path.suffix == ".steps": return Steps.from_parent(parent, path=file_path)
            """,
            "one.steps": "good bad good",
            "two.steps": "good",
        }
    ),
    "one_name_twice": SmallSuite(
        {
            "conftest.py": """
            import pytest
            class Steps(pytest.File):
                def collect(self):
                    yield Step.from_parent(self, name="same")
                    yield Step.from_parent(self, name="same")
            class Step(pytest.Item):
                count = 0
                def runtest(self):
                    Step.count += 1
                    assert Step.count == 2
            def pytest_collect_file(parent, file_path):
                if file_path.suffix == ".steps": return Steps.from_parent(parent, path=file_path)
            """,
            "one.steps": "",
        }
    ),
    "hooks_of_items": _one(
        "def test_a(): pass\ndef test_b(): assert False\ndef test_c(): assert False\n",
        conftest__py="""
        import pytest
        def pytest_collection_modifyitems(config, items):
            items.reverse()
            for item in items:
                if item.name == "test_c": item.add_marker(pytest.mark.skip(reason="by the conftest"))
        """,
    ),
    "hooks_that_deselect": _one(
        "def test_a(): pass\ndef test_b(): assert False\n",
        conftest__py="""
        def pytest_collection_modifyitems(config, items):
            gone = [item for item in items if item.name == "test_b"]
            config.hook.pytest_deselected(items=gone)
            items[:] = [item for item in items if item not in gone]
        """,
    ),
    "hooks_of_reports": _one(
        "def test_a(): print('noise')\ndef test_b(): pass\ndef test_c(): raise KeyError('gone')\n",
        conftest__py="""
        import pytest
        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(item, call):
            report = (yield).get_result()
            if report.when == "call" and "noise" in report.capstdout:
                report.outcome, report.longrepr = "failed", "this test printed"
            if report.when == "call" and call.excinfo is not None and call.excinfo.errisinstance(KeyError):
                report.outcome, report.longrepr = "skipped", ("conftest.py", 1, "Skipped: it is gone")
        """,
    ),
    "hooks_that_run_tests": _one(
        "def test_a(): assert RUNS == 2\nRUNS = 0\n",
        conftest__py="""
        def pytest_pyfunc_call(pyfuncitem):
            pyfuncitem.module.RUNS += 2
        def pytest_runtest_call(item): item.user_properties.append(("seen", item.name))
        def pytest_runtest_setup(item): item.config.seen = getattr(item.config, "seen", 0) + 1
        """,
    ),
    "options_of_a_conftest": _one(
        "def test_level(level): assert level == 3\n",
        "--level=3",
        conftest__py="""
        import pytest
        def pytest_addoption(parser): parser.addoption("--level", type=int, default=1)
        @pytest.fixture
        def level(request): return request.config.getoption("--level")
        """,
    ),
    "selected_by_name": _one("def test_good(): pass\ndef test_bad(): assert False\n", "-k", "good"),
    "selected_by_mark": _one(
        "import pytest\n@pytest.mark.fast\ndef test_1(): pass\ndef test_2(): assert False\n",
        pytest__ini="[pytest]\nmarkers = fast: runs soon\naddopts = -m fast --strict-markers\n",
    ),
    "unknown_marks": _one(
        "import pytest\n@pytest.mark.unheard_of\ndef test_1(): pass\ndef test_2(): pass\n",
        pytest__ini="[pytest]\naddopts = --strict-markers\n",
    ),
    "names_by_ini": SmallSuite(
        {
            "pytest.ini": "[pytest]\npython_files = check_*.py\npython_functions = check_*\npython_classes = Check\n",
            "check_a.py": "def check_1(): pass\ndef test_2(): assert False\nclass CheckThis:\n    def check_3(self): assert self is None\n",
            "test_b.py": "def test_4(): assert False\n",
        }
    ),
    "warnings_are_errors": _one(
        """
        import warnings
        def test_warns(): warnings.warn("old", DeprecationWarning)
        def test_caught(recwarn): warnings.warn("old"); assert len(recwarn) == 1
        """,
        pytest__ini="[pytest]\nfilterwarnings = error\n",
    ),
    "threads_and_unraisable": _one(
        """
        import threading
        def test_thread():
            thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()
        def test_del():
            class Odd:
                def __del__(self): raise ValueError("in __del__")
            Odd()
        def test_plain(): pass
        """,
        "-Werror",
    ),
    "capture": _one("""
        import os, sys
        def test_sys(capsys): print("x"); assert capsys.readouterr().out == "x\\n"
        def test_fd(capfd): os.write(1, b"y"); assert capfd.readouterr().out == "y"
        def test_log(caplog):
            import logging
            with caplog.at_level("INFO"): logging.getLogger("a").info("here")
            assert caplog.messages == ["there"]
        def test_disabled(capsys):
            with capsys.disabled(): print("shown")
        def test_descriptor(): assert os.fstat(sys.stdout.fileno())
        def test_not_a_terminal(): assert not sys.stdout.isatty()
        """),
    "standard_input": _one("import sys\ndef test_read(): sys.stdin.read()\ndef test_input(): input()\n"),
    "not_captured": _one("import sys\ndef test_1(request): assert request.config.option.capture == 'no'\n", "-s"),
    "cache": _one(
        """
        def test_write(cache): cache.set("a/b", {"n": 1}); assert cache.get("a/b", None) == {"n": 1}
        def test_folder(cache): assert cache.mkdir("deep").is_dir()
        def test_plugin(request): assert request.config.pluginmanager.has_plugin("cacheprovider")
        """,
        pytest__ini="[pytest]\ncache_dir = .kept\naddopts = --strict-config\n",
    ),
    "plugins_are_there": _one("""
        import pytest
        @pytest.mark.parametrize("name", ["terminalreporter", "cacheprovider", "capturemanager", "logging-plugin", "junitxml"])
        def test_plugin(name, pytestconfig): assert pytestconfig.pluginmanager.hasplugin(name)
        def test_writer(pytestconfig): assert pytestconfig.get_terminal_writer().fullwidth > 0
        def test_reporter(request): request.config.pluginmanager.get_plugin("terminalreporter").write_line("x")
        """),
    "session_state": _one("""
        def test_items(request): assert [i.name for i in request.session.items][:2] == ["test_items", "test_failed"]
        def test_failed(): assert False
        def test_count(request): assert request.session.testsfailed == 1
        def test_collected(request): assert request.session.testscollected == 4
        """),
    "rootdir": _one(
        """
        def test_root(pytestconfig): assert pytestconfig.rootpath.name == "rootdir"
        def test_ini(pytestconfig): assert pytestconfig.inipath.name == "pytest.ini"
        def test_id(request): assert request.node.nodeid == "test_it.py::test_id"
        def test_current(): import os; assert os.environ["PYTEST_CURRENT_TEST"].startswith("test_it.py::test_current")
        """,
        pytest__ini="[pytest]\n",
    ),
    "python_path": SmallSuite(
        {
            "pytest.ini": "[pytest]\npythonpath = lib\n",
            "lib/helper_of_mine.py": "X = 1\n",
            "test_it.py": "import helper_of_mine\ndef test_1(): assert helper_of_mine.X == 1\n",
        }
    ),
    "importlib_mode": SmallSuite(
        {
            "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\n",
            "a/test_same.py": "def test_1(): pass\n",
            "b/test_same.py": "def test_1(): assert __name__ == 'x'\n",
        }
    ),
    "same_basename": SmallSuite(
        {
            "a/test_same.py": "def test_1(): pass\n",
            "b/test_same.py": "def test_1(): pass\n",
            "test_other.py": "def test_2(): pass\n",
        },
        ("--continue-on-collection-errors",),
    ),
    "packages": SmallSuite(
        {
            "pkg/__init__.py": "COUNT = []\n",
            "pkg/conftest.py": """
            import pytest
            @pytest.fixture(scope="package", autouse=True)
            def once():
                from . import COUNT
                COUNT.append(1)
                yield
            """,
            "pkg/test_a.py": "from . import COUNT\ndef test_1(): assert COUNT == [1]\n",
            "pkg/test_b.py": "from . import COUNT\ndef test_2(): assert COUNT == [1]\n",
        }
    ),
    "odd_names": SmallSuite(
        {
            "simple[hard]/test_h.py": "def test_1(): pass\ndef test_2(): assert False\n",
            "with space/test_s.py": "def test_1(): pass\n",
            "test_p.py": """
            import pytest
            @pytest.mark.parametrize("x", ["a b", "a/b", "a::b", "ä", "x\\ny", "", "#2", "[", "a" * 300])
            def test_x(x): assert x != "a/b"
            """,
        }
    ),
    "broken_files": SmallSuite(
        {
            "test_a.py": "import no_such_module_anywhere\ndef test_1(): pass\n",
            "test_b.py": "def test_2(): pass\n",
            "test_c.py": "def test_3(:\n",
            "test_d.py": "import pytest\npytest.skip('not here', allow_module_level=True)\n",
        },
        ("--continue-on-collection-errors",),
    ),
    "what_tests_leave": SmallSuite(
        {
            "test_a.py": "import os, sys\ndef test_1(): os.chdir('/'); os.environ['LEFT'] = '1'; sys.modules['fractions'] = None\n",
            "test_b.py": "import os, fractions\nHERE = os.getcwd()\ndef test_2(): assert HERE != '/'\n",
            "test_c.py": "def test_3(tmp_path, monkeypatch): monkeypatch.chdir(tmp_path); open('x', 'w').close()\n",
        }
    ),
    "order_of_imports": SmallSuite(
        {
            "counted_classes.py": "import itertools\nNUMBERS = itertools.count()\n"
            "def make(scope):\n    name = f'TestGen{next(NUMBERS)}'\n    scope[name] = type(name, (), {'test_1': lambda self: None})\n",
            **{f"test_{letter}.py": "from counted_classes import make\nmake(globals())\n" for letter in "abc"},
        }
    ),
    "exceptions": _one("""
        import sys, pytest
        class Odd(Exception):
            def __str__(self): raise RuntimeError("no text")
        def test_odd(): raise Odd()
        def test_group(): raise ExceptionGroup("many", [ValueError("a"), KeyError("b")])
        def test_chain():
            try: 1 / 0
            except ZeroDivisionError as error: raise OSError("after") from error
        def test_fail(): pytest.fail("by hand", pytrace=False)
        def test_system_exit(): sys.exit(3)
        def test_recursion(): test_recursion_of(0)
        def test_recursion_of(n=0): return test_recursion_of(n + 1)
        """),
    "generators_of_tests": _one("""
        import pytest
        def pytest_generate_tests(metafunc):
            if "word" in metafunc.fixturenames: metafunc.parametrize("word", ["a", "b"], ids=lambda w: f"<{w}>", scope="module")
        def test_word(word): assert word == "a"
        @pytest.mark.parametrize("x", [])
        def test_empty(x): pass
        @pytest.mark.parametrize("x,y", [(1, 2), pytest.param(3, 4, id="second", marks=pytest.mark.xfail)])
        @pytest.mark.parametrize("z", range(2))
        def test_more(x, y, z): assert x == 1
        """),
    "use_fixtures": _one(
        "def test_1(): import os; assert os.environ['FROM_FIXTURE'] == '1'\n",
        pytest__ini="[pytest]\nusefixtures = env\n",
        conftest__py="import pytest\n@pytest.fixture\ndef env(monkeypatch): monkeypatch.setenv('FROM_FIXTURE', '1')\n",
    ),
    "stops_at_its_end": _one(
        "def test_1(): pass\n",
        conftest__py="""
        import pytest
        def pytest_sessionfinish(session): assert session.testscollected == 1
        def pytest_terminal_summary(terminalreporter): terminalreporter.write_line("over")
        def pytest_unconfigure(config): pass
        """,
    ),
    "temporary_folders": _one("""
        def test_1(tmp_path): (tmp_path / "x").touch()
        def test_2(tmp_path_factory): assert tmp_path_factory.mktemp("a").name == "a0"
        def test_3(tmp_path, tmp_path_factory): assert tmp_path.parent == tmp_path_factory.getbasetemp()
        """),
    "repeated_attributes": _one("""
        def test_record(record_property): record_property("speed", 3)
        def test_stash(request): request.node.stash
        def test_request(request): assert request.keywords["test_request"]
        """),
}
