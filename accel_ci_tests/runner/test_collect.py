"""The `collect` command: it finds all tests, and a broken file costs only itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accel_ci_tests.fixtures.suite import Write


@pytest.fixture
def collect(runner: Path, root: Path, tmp_path: Path) -> Any:
    def _collect(*paths: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
        output = tmp_path / "collected.json"
        command = [sys.executable, str(runner), "collect", "--root", str(root), "--output", str(output)]
        subprocess.run([*command, *options, *paths], cwd=tmp_path, timeout=60, check=True)
        result: dict[str, Any] = json.loads(output.read_text("utf-8"))
        return result

    return _collect


def test_node_ids_are_relative_to_the_root_and_nothing_is_written(collect: Any, write: Write, root: Path) -> None:
    write("tests/test_a.py", "import pytest\n@pytest.mark.parametrize('x', ['a b', 'x::y', '[q]'])\ndef test_p(x): pass\n")
    write("tests/deep/test_b.py", "def test_b(): pass\n")
    before = sorted(root.rglob("*"))
    result = collect("tests")
    assert sorted(result["tests"]) == [
        "tests/deep/test_b.py::test_b",
        "tests/test_a.py::test_p[[q]]",
        "tests/test_a.py::test_p[a b]",
        "tests/test_a.py::test_p[x::y]",
    ]
    assert result["errors"] == []
    assert result["collect_s"] > 0
    assert sorted(root.rglob("*")) == before


def test_a_broken_file_is_reported_and_the_others_are_kept(collect: Any, write: Write) -> None:
    write("tests/test_good.py", "def test_good(): pass\n")
    write("tests/test_bad.py", "import there_is_no_such_module\n")
    result = collect("tests")
    assert result["tests"] == ["tests/test_good.py::test_good"]
    assert [error["path"] for error in result["errors"]] == ["tests/test_bad.py"]
    assert "there_is_no_such_module" in result["errors"][0]["message"]


def test_a_broken_conftest_costs_only_its_own_path(collect: Any, write: Write) -> None:
    write("good/test_good.py", "def test_good(): pass\n")
    write("bad/conftest.py", "raise RuntimeError('no device here')\n")
    write("bad/test_bad.py", "def test_bad(): pass\n")
    result = collect("good", "bad")
    assert result["tests"] == ["good/test_good.py::test_good"]
    assert [error["path"] for error in result["errors"]] == ["bad"]
    assert "no device here" in result["errors"][0]["message"]


def test_pytest_arguments_are_passed_on(collect: Any, write: Write) -> None:
    write("test_a.py", "def test_one(): pass\ndef test_two(): pass\n")
    assert collect("test_a.py", options=("--pytest-arg=-k", "--pytest-arg=two"))["tests"] == ["test_a.py::test_two"]


DEATHS = {
    "segfault": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
    "exit_0": ("import os\nos._exit(0)", "ended with exit code 0"),
    "exit_7": ("import os\nos._exit(7)", "ended with exit code 7"),
    "killed": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
    "sys_exit": ("import sys\nsys.exit(3)", "SystemExit: 3"),
    "pytest_exit": ("import pytest\npytest.exit('no device', returncode=0)", "no device"),
    "interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "hang": ("import time\nwhile True:\n    time.sleep(1)", "within the limit of 6 s"),
    "daemon": ("import os, time\nif os.fork() == 0:\n    time.sleep(1000)\nos._exit(0)", "ended with exit code 0"),
    "closed": ("import os\nos.closerange(3, 4096)", "collected tests/test_bad.py"),
    "junk": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'junk\\n')\n    except OSError: pass",
        "test_bad.py",
    ),
    "stopped": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "within the limit of 6 s"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_file_that_ends_the_collection_costs_only_itself(collect: Any, write: Write, death: str) -> None:
    body, message = DEATHS[death]
    write("tests/conftest.py", "")
    write("tests/test_a.py", "def test_a(): pass\n")
    write("tests/test_bad.py", f"{body}\ndef test_bad(): pass\n")
    write("tests/test_c.py", "class TestC:\n    def test_c(self): pass\n")
    result = collect("tests", options=("--limit", "6"))
    assert sorted(result["tests"]) == ["tests/test_a.py::test_a", "tests/test_c.py::TestC::test_c"]
    assert [error["path"] for error in result["errors"]] == ["tests/test_bad.py"]
    assert message in result["errors"][0]["message"]


def test_a_conftest_that_ends_the_collection_costs_its_folder(collect: Any, write: Write) -> None:
    write("tests/conftest.py", "")
    write("tests/test_a.py", "def test_a(): pass\n")
    write("tests/bad/conftest.py", "import os\nos._exit(0)\n")
    write("tests/bad/test_b.py", "def test_b(): pass\n")
    result = collect("tests")
    assert result["tests"] == ["tests/test_a.py::test_a"]
    [error] = result["errors"]
    assert (error["path"], error["message"]) == ("tests/bad", "pytest ended with exit code 0 while it collected tests/bad")


def test_several_files_end_the_collection(collect: Any, write: Write) -> None:
    for number in range(4):
        write(f"test_{number}.py", "import os\nos._exit(0)\n" if number % 2 else "def test_a(): pass\n")
    result = collect(".")
    assert result["tests"] == ["test_0.py::test_a", "test_2.py::test_a"]
    assert [error["path"] for error in result["errors"]] == ["test_1.py", "test_3.py"]


def test_a_thread_that_never_ends_does_not_hold_up_the_collection(collect: Any, write: Write) -> None:
    write(
        "test_a.py",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\ndef test_a(): pass\n",
    )
    assert collect("test_a.py")["tests"] == ["test_a.py::test_a"]


LEAVES_OUT = """
collect_ignore = ["test_ignored.py"]
def pytest_collection_modifyitems(items, config):
    config.hook.pytest_deselected(items=[item for item in items if "told" in item.name])
    items[:] = [item for item in items if "told" not in item.name and "silent" not in item.name]
"""


def test_what_is_left_out_is_counted_by_who_does_it(collect: Any, write: Write) -> None:
    write("tests/conftest.py", LEAVES_OUT)
    names = ("good", "told", "silent", "word", "named")
    marked = "import pytest\n@pytest.mark.slow\ndef test_slow(): pass\n"
    write("tests/test_a.py", marked + "".join(f"def test_{name}(): pass\n" for name in names))
    for name in ("test_ignored.py", "test_option.py", "test_glob_1.py", "test_glob_2.py"):
        write(f"tests/{name}", "def test_x(): pass\n")
    write("tests/helper.py", "")
    write("tests/node_modules/test_no.py", "raise RuntimeError\n")  # pytest itself never looks there
    write("tests/test_skip.py", "import pytest\npytest.skip('no device', allow_module_level=True)\n")
    arguments = (
        "-m", "not slow", "-k", "not word", "--deselect=tests/test_a.py::test_named", "--ignore=tests/test_option.py",
        "--ignore-glob=*/test_glob_*.py",
    )  # fmt: skip
    found = collect("tests", options=tuple(f"--pytest-arg={each}" for each in arguments))
    assert found["tests"] == ["tests/test_a.py::test_good"]
    assert found["skipped"] == {"tests/test_skip.py": "no device"}
    silent = [who for who in found["deselected"] if who.startswith("removed without a word by")]
    assert "pytest_collection_modifyitems in tests/conftest.py" in silent[0]
    assert found["deselected"] == {
        silent[0]: 1,
        "deselected by pytest_collection_modifyitems in tests/conftest.py": 1,
        "deselected by -m 'not slow'": 1,
        "deselected by -k 'not word'": 1,
        "deselected by --deselect": 1,
    }
    assert found["ignored"] == {
        "tests/test_ignored.py": "files ignored by collect_ignore in tests/conftest.py",
        "tests/test_option.py": "files ignored by --ignore",
        "tests/test_glob_1.py": "files ignored by --ignore-glob",
        "tests/test_glob_2.py": "files ignored by --ignore-glob",
    }


def test_a_file_that_is_left_out_because_it_ends_the_process_is_not_ignored(collect: Any, write: Write) -> None:
    write("tests/test_a.py", "def test_a(): pass\n")
    write("tests/test_dies.py", "import os\nos._exit(3)\n")
    found = collect("tests")
    assert [error["path"] for error in found["errors"]] == ["tests/test_dies.py"]
    assert found["ignored"] == {}


@pytest.fixture
def collect_each(runner: Path, root: Path, tmp_path: Path) -> Any:
    def _collect(*files: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
        output = tmp_path / "collected.json"
        command = [sys.executable, str(runner), "collect-each", "--root", str(root), "--output", str(output)]
        subprocess.run([*command, *options, *files], cwd=tmp_path, timeout=240, check=True)
        result: dict[str, Any] = json.loads(output.read_text("utf-8"))
        return result

    return _collect


def test_each_file_is_collected_as_if_it_were_alone(collect_each: Any, write: Write) -> None:
    """Two files of one name cannot be imported by one pytest that puts their folders before the others."""
    write("test_ops.py", "import sys\nsys.changed = True\ndef test_a(): pass\n")
    write("deep/test_ops.py", "import sys\nassert not hasattr(sys, 'changed')\ndef test_b(): pass\n")
    result = collect_each("test_ops.py", "deep/test_ops.py")
    assert {file: document["tests"] for file, document in result["files"].items()} == {
        "test_ops.py": ["test_ops.py::test_a"],
        "deep/test_ops.py": ["deep/test_ops.py::test_b"],
    }
    assert result["collect_s"] > 0


@pytest.mark.parametrize("death", ["segfault", "exit_0", "hang", "daemon"])
def test_a_file_that_ends_its_process_costs_only_itself(collect_each: Any, write: Write, death: str) -> None:
    text, words = DEATHS[death]
    write("test_bad.py", text)
    write("test_good.py", "def test_good(): pass\n")
    found = collect_each("test_bad.py", "test_good.py", options=("--limit", "20"))["files"]
    assert list(found) == ["test_bad.py", "test_good.py"]
    assert found["test_good.py"]["tests"] == ["test_good.py::test_good"]
    assert not found["test_bad.py"]["tests"]
    [error] = found["test_bad.py"]["errors"]
    assert error["path"] == "test_bad.py"
    assert words.replace("6 s", "20 s") in error["message"]


def test_a_file_that_ends_the_processes_above_it_costs_only_itself(collect_each: Any, write: Write) -> None:
    write("test_bad.py", "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(os.getpid(), signal.SIGKILL)\n")
    write("test_good.py", "def test_good(): pass\n")
    found = collect_each("test_bad.py", "test_good.py")["files"]
    assert found["test_good.py"]["tests"] == ["test_good.py::test_good"]
    assert [error["path"] for error in found["test_bad.py"]["errors"]] == ["test_bad.py"]
