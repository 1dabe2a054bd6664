"""Stages on the pool that the configuration names, from the selection to the manifest."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.settings import Project
from accel_ci.errors import AccelCiError
from accel_ci.model import SelectedTest, TestSelection
from accel_ci.pool.choose_pool import worker_spec_for
from accel_ci.progress import LineProgress
from accel_ci.results.questions import bad_tests, failed_attempts
from accel_ci.results.store import ResultsStore
from accel_ci.scope.selection import read_selection, write_selection
from accel_ci.steps.device_tests import (
    StageContext,
    collect_tests,
    plan_device_tests,
    read_plan,
    run_smoke_stage,
    unfinished_plan,
)
from accel_ci.storage.bucket import open_bucket
from accel_ci_tests.fixtures.stages import IMAGE, run_device
from accel_ci_tests.fixtures.stored_attempts import NEEDED, real_s3
from accel_ci_tests.fixtures.suite import Write
from accel_ci_tests.pool.flaky_server import flaky_server

MakeProject = Callable[..., Project]
TWO_CARDS = {"cards": 2, "card_environment": "TOY_CARD"}


def suites(**extra: dict[str, Any]) -> dict[str, Any]:
    return {"smoke": {"stage": "smoke", "paths": ["tests/smoke"]}, "unit": {"paths": ["tests/unit"]}, **extra}


def test_an_instance_runs_during_a_stage(make_project: MakeProject, write: Write, root: Path, context: StageContext) -> None:
    on = root / "on"
    write("tests/smoke/test_a.py", f"import pathlib\ndef test_1(): assert pathlib.Path({str(on)!r}).exists()\n")
    commands = {"start": ["touch", str(on)], "ready": ["test", "-e", str(on)], "pause": ["rm", str(on)]}
    project = make_project(pool={"cards": 2, "card_environment": "TOY_CARD", "instance": commands})
    settings = project.settings
    spec = worker_spec_for(settings, IMAGE, root)
    with LineProgress().step("smoke") as step:
        results = run_smoke_stage(settings, settings.suites_of("nightly", "smoke"), spec, context, step)
    assert results.counts == {"passed": 1}
    assert not on.exists()
    [stored] = context.results.suites(build=context.build)
    assert (stored.day, stored.suite) == (context.day, "smoke"), "the attempts lie in the store when the stage ends"
    assert context.results.read(stored, ["test", "outcome"]).to_pylist() == [
        {"test": "tests/smoke/test_a.py::test_1", "outcome": "passed"}
    ]


def test_tests_are_planned_away_from_the_cards_that_they_have_failed_on(
    make_project: MakeProject, context: StageContext
) -> None:
    settings = make_project(pool=TWO_CARDS).settings
    tests = [SelectedTest("unit", f"a.py::{name}", "group" if name in "cd" else None) for name in "abcde"]
    selection = TestSelection(write_selection(tests, context.artifacts), (), 1.0)
    failed_on = {("unit", "a.py::a"): ["0"], ("unit", "a.py::b"): ["0", "1"], ("unit", "a.py::d"): ["1", "7"]}
    plan = plan_device_tests(settings, selection, {}, context.artifacts, failed_on=failed_on)
    batches = read_plan(plan.batches, context.artifacts).batches
    assert {tuple(test[-1] for test in batch.tests): batch.avoid_cards for batch in batches} == {
        ("a",): ("0",), ("b", "e"): (), ("c", "d"): ("1",),
    }  # fmt: skip
    assert len({batch.id for batch in batches}) == len(batches) == plan.batch_count
    assert (plan.tests, plan.unknown, plan.estimated_s) == (5, 5, 5.0)


@real_s3
def test_attempts_that_cannot_be_stored_are_kept_and_their_tests_do_not_run_again(
    make_project: MakeProject, write: Write, root: Path, context: StageContext, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    write("tests/unit/test_a.py", f"def test_1():\n    with open({str(ran)!r}, 'a') as file: file.write('x')\n")
    endpoint, bucket, *keys = (os.environ[name] for name in NEEDED)
    project = make_project(pool={"cards": 2, "card_environment": "TOY_CARD"}, suites=suites())
    with flaky_server(endpoint) as server:
        store = open_bucket(bucket, f"test-{uuid.uuid4().hex}", tmp_path / "cache", server.url, (keys[0], keys[1]))
        context = replace(context, results=ResultsStore(store))
        server.away_while = ran.exists
        with pytest.raises(AccelCiError, match=r"all attempts are kept in .*/device: the same command stores them"):
            run_device(project, root, context)
        server.away_while = lambda: False
        spec = worker_spec_for(project.settings, IMAGE, root)
        selection = collect_tests(project.settings, project.settings.suites_of("nightly", "device"), spec, context)
        assert unfinished_plan(project.settings, selection, context.folder) is not None
        assert run_device(project, root, context).counts == {"passed": 1}
        assert unfinished_plan(project.settings, selection, context.folder) is None, "it is stored"
    assert ran.read_text() == "x"


def test_tests_of_several_cards_and_too_few_of_them(
    make_project: MakeProject, write: Write, root: Path, context: StageContext
) -> None:
    write("tests/unit/test_a.py", "import os\ndef test_1(): assert os.environ['TOY_CARD'] in '01'\n")
    write("tests/wide/test_a.py", "import os\ndef test_1(): assert os.environ['TOY_CARD'] == '0,1'\n")
    job = {"cron": "0 2 * * *", "suites": ["smoke", "unit", "wide"]}
    jobs = {"nightly": job, "intraday": job, "main": {"suites": ["unit"]}, "pr": {"suites": ["unit"]}}
    pool: dict[str, Any] = {"cards": 2, "card_environment": "TOY_CARD"}
    sections = {"jobs": jobs, "suites": suites(wide={"paths": ["tests/wide"], "cards": 2})}
    assert run_device(make_project(pool=pool, **sections), root, context).counts == {"passed": 2}

    pool["health_probe"] = ["python", "-c", "import os, sys; sys.exit('1' in os.environ['TOY_CARD'])"]
    results = run_device(make_project(pool=pool, **sections), root, context)
    assert results.counts == {"passed": 1, "not_run": 1}
    [lost] = failed_attempts(context.results, context.build, results.suites)
    assert "2 healthy card(s) are needed and 1 left (card 1: the probe ended with 1)" in (lost.message or "")


def attempts_of(context: StageContext) -> dict[str, list[tuple[int, str]]]:
    """Return the round and outcome of each attempt, by test."""
    [stored] = context.results.suites(build=context.build)
    found: dict[str, list[tuple[int, str]]] = {}
    for row in context.results.read(stored, ["test", "round", "outcome"]).to_pylist():
        found.setdefault(row["test"].rpartition("/")[2], []).append((row["round"], row["outcome"]))
    return found


def test_a_group_over_two_files_runs_on_one_card_at_a_time(
    make_project: MakeProject, write: Write, root: Path, context: StageContext
) -> None:
    for name in ("a", "b"):
        write(
            f"tests/unit/test_{name}.py",
            f"""
            import os, time, pytest
            pytestmark = pytest.mark.xdist_group("port")
            @pytest.mark.parametrize("number", range(3))
            def test_exclusive(number):
                os.close(os.open({str(root / "lock")!r}, os.O_CREAT | os.O_EXCL))
                time.sleep(0.2)
                os.unlink({str(root / "lock")!r})
            """,
        )
    write("tests/unit/test_c.py", "def test_free(): pass\n")
    assert run_device(make_project(pool=TWO_CARDS, suites=suites()), root, context).counts == {"passed": 7}


def test_tests_that_depend_on_those_of_another_file_run_after_them(
    make_project: MakeProject, write: Write, root: Path, context: StageContext
) -> None:
    """A small stand-in for pytest-dependency, with its mark."""
    write(
        "tests/unit/conftest.py",
        """
        import pytest
        passed = set()
        def pytest_configure(config):
            config.addinivalue_line("markers", "dependency: needs others")
        def pytest_runtest_makereport(item, call):
            if call.when == "call" and call.excinfo is None:
                passed.add(item.nodeid)
        def pytest_runtest_setup(item):
            for name in item.get_closest_marker("dependency").kwargs.get("depends", ()):
                if name not in passed:
                    pytest.skip(f"{item.name} depends on {name}")
        """,
    )
    write("tests/unit/test_a.py", "import pytest\n@pytest.mark.dependency()\ndef test_open(): pass\n")
    write(
        "tests/unit/test_b.py",
        """
        import pytest
        @pytest.mark.dependency(depends=["tests/unit/test_a.py::test_open"], scope="session")
        def test_use(): assert False
        """,
    )
    run_device(make_project(pool=TWO_CARDS, suites=suites()), root, context)
    assert attempts_of(context) == {
        "test_a.py::test_open": [(1, "passed"), (2, "passed")],
        "test_b.py::test_use": [(1, "failed"), (2, "failed")],
    }


def test_an_ordered_class_runs_again_as_a_whole(
    make_project: MakeProject, write: Write, root: Path, context: StageContext
) -> None:
    """The recipe for `incremental` classes in pytest's documentation, with a step that passes at its second try."""
    write(
        "tests/unit/conftest.py",
        """
        import pytest
        failed = {}
        def pytest_configure(config):
            config.addinivalue_line("markers", "incremental: steps of one class")
        def pytest_runtest_makereport(item, call):
            if "incremental" in item.keywords and call.excinfo is not None:
                failed.setdefault(item.parent.nodeid, item.name)
        def pytest_runtest_setup(item):
            if "incremental" in item.keywords and item.parent.nodeid in failed:
                pytest.xfail("previous test failed")
        """,
    )
    write(
        "tests/unit/test_a.py",
        f"""
        import pathlib, pytest
        @pytest.mark.incremental
        class TestShaky:
            def test_1(self): pass
            def test_2(self):
                marker = pathlib.Path({str(root / "marker")!r})
                was = marker.exists()
                marker.touch()
                assert was
            def test_3(self): pass
        @pytest.mark.incremental
        class TestBad:
            def test_1(self): pass
            def test_2(self): assert False
            def test_3(self): pass
        """,
    )
    run_device(make_project(pool=TWO_CARDS, suites=suites()), root, context)
    assert attempts_of(context) == {
        "test_a.py::TestShaky::test_1": [(1, "passed"), (2, "passed"), (4, "passed")],
        "test_a.py::TestShaky::test_2": [(1, "failed"), (2, "passed"), (4, "passed")],
        "test_a.py::TestShaky::test_3": [(1, "xfailed"), (2, "passed"), (4, "passed")],
        "test_a.py::TestBad::test_1": [(1, "passed"), (2, "passed")],
        "test_a.py::TestBad::test_2": [(1, "failed"), (2, "failed")],
        "test_a.py::TestBad::test_3": [(1, "xfailed"), (2, "xfailed")],
    }


def test_tests_that_depend_on_their_order_without_a_mark(
    make_project: MakeProject, write: Write, root: Path, context: StageContext
) -> None:
    write(
        "tests/unit/test_a.py",
        """
        import pytest
        opened = []
        def test_open(): opened.append(1)
        def test_use():
            if not opened:
                pytest.skip("test_open has not run")
            assert opened == [2]
        class TestStack:
            stack = []
            def test_push(self): self.stack.append(1)
            def test_pop(self): assert self.stack.pop() == 1
        """,
    )
    run_device(make_project(pool=TWO_CARDS, suites=suites()), root, context)
    assert attempts_of(context) == {
        "test_a.py::test_open": [(1, "passed"), (3, "passed")],
        "test_a.py::test_use": [(1, "failed"), (2, "skipped"), (3, "failed")],
        "test_a.py::TestStack::test_push": [(1, "passed")],
        "test_a.py::TestStack::test_pop": [(1, "passed")],
    }


def test_an_error_at_the_end_of_a_session_is_in_the_results(
    make_project: MakeProject, write: Write, root: Path, context: StageContext
) -> None:
    write(
        "tests/unit/test_a.py",
        """
        import pytest
        @pytest.fixture(scope="session")
        def device():
            yield 1
            raise OSError("device did not close")
        def test_1(device): pass
        """,
    )
    run_device(make_project(pool=TWO_CARDS, suites=suites()), root, context)
    assert attempts_of(context) == {"(session)": [(1, "error")], "test_a.py::test_1": [(1, "passed")]}
    [listed] = bad_tests(context.results, context.build, ["unit"])
    assert (listed.test, listed.verdict) == ("(session)", "failed")
    assert "device did not close" in (listed.message or "")


def test_the_docker_pool_collects_and_runs_in_its_image(
    make_project: MakeProject,
    write: Write,
    root: Path,
    context: StageContext,
    docker_image: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PASSED", "through")
    monkeypatch.setenv("SECRET", "hunter2")
    write(
        "tests/unit/test_a.py",
        """
        import os, pytest, sys
        @pytest.mark.parametrize("image", [os.environ["IMAGE_OWN"]])
        def test_image(image): assert sys.executable == "/usr/bin/python3"
        def test_environment():
            assert "SECRET" not in os.environ and "CI" not in os.environ
            assert (os.environ["PASSED"], os.environ["OWN"], os.environ["HOME"]) == ("through", "value", "/tmp")
        """,
    )
    pool = {
        "kind": "docker", "image": docker_image, "cards": 2, "card_environment": "TOY_CARD", "pass_environment": ["PASSED"],
        "environment": {"OWN": "value", "CI": None},
    }  # fmt: skip
    results = run_device(make_project(pool=pool, suites=suites()), root, context)
    assert (results.counts, failed_attempts(context.results, context.build, results.suites)) == ({"passed": 2}, [])


def test_files_that_end_the_collection_are_errors(
    make_project: MakeProject, write: Write, root: Path, context: StageContext
) -> None:
    write("tests/unit/test_a.py", "def test_1(): pass\n")
    write("tests/unit/test_segfault.py", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    write("tests/unit/test_exit.py", "import os\nos._exit(0)\n")
    results = run_device(make_project(suites=suites()), root, context)
    rows = {attempt.test: attempt for attempt in failed_attempts(context.results, context.build, results.suites)}
    assert results.counts["passed"] == 1
    assert "SIGSEGV" in (rows["tests/unit/test_segfault.py"].message or "")
    assert "exit code 0" in (rows["tests/unit/test_exit.py"].message or "")


def test_a_file_whose_name_is_not_utf8_is_an_error(
    make_project: MakeProject, write: Write, root: Path, context: StageContext
) -> None:
    write("tests/unit/test_a.py", "def test_1(): pass\n")
    (root / "tests" / "unit" / os.fsdecode(b"test_\xff.py")).write_text("def test_2(): pass\n")
    results = run_device(make_project(suites=suites()), root, context)
    rows = failed_attempts(context.results, context.build, results.suites)
    assert results.counts["passed"] == 1
    found = {row.test: (row.outcome, row.message) for row in rows}
    assert found[r"tests/unit/test_\udcff.py"] == ("error", "the name of this file is not UTF-8; rename it")


def test_a_file_that_ends_the_collecting_command_itself_is_an_error(
    make_project: MakeProject, write: Write, root: Path, context: StageContext
) -> None:
    write("tests/unit/test_a.py", "def test_1(): pass\n")
    write("tests/unit/test_b.py", "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n")
    settings = make_project(suites=suites()).settings
    selection = collect_tests(settings, {"unit": settings.suites["unit"]}, worker_spec_for(settings, IMAGE, root), context)
    tests = [test.test for test in read_selection(selection.tests, context.artifacts)]
    assert tests == ["tests/unit/test_a.py::test_1", "tests/unit/test_b.py"]
    assert "was ended while pytest collected tests/unit/test_b.py" in selection.suites[0].collection_errors[0]
