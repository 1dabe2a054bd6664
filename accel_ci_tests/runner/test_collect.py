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
