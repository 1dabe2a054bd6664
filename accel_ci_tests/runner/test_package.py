"""The zipapp: its imports, its stable bytes, and that it runs where only pytest is installed."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import accel_ci.runner
from accel_ci.pool.runner_package import build_runner
from accel_ci_tests.fixtures.suite import Write

SOURCES = sorted(Path(accel_ci.runner.__file__).parent.glob("*.py"))
BASE_PYTHON = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
PYTEST_NEEDS = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli")


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_imports_only_the_standard_library_and_pytest(source: Path) -> None:
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            assert name.partition(".")[0] in sys.stdlib_module_names | {"pytest", "_pytest", "pluggy"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_is_in_the_grammar_of_python_3_9(source: Path) -> None:
    ast.parse(source.read_text("utf-8"), feature_version=(3, 9))


def test_equal_sources_make_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_runner(tmp_path / "a" / "runner.pyz").read_bytes()
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert build_runner(tmp_path / "b.pyz").read_bytes() == first


@pytest.mark.skipif(not BASE_PYTHON.exists(), reason="this Python has no base interpreter to run beside it")
def test_runs_where_only_pytest_can_be_imported(runner: Path, root: Path, write: Write, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in PYTEST_NEEDS:
        try:
            location = Path(importlib.import_module(name).__file__ or "")
        except ImportError:
            continue
        location = location.parent if location.name == "__init__.py" else location
        (packages / location.name).symlink_to(location)
        for record in location.parent.glob(f"{name}-*.dist-info"):  # pytest's header names pluggy's version
            (packages / record.name).symlink_to(record)
    write("test_one.py", "def test_it():\n    import sys\n    assert 'accel_ci' not in sys.modules\n")
    command = [str(BASE_PYTHON), "-S", str(runner), "collect", "--root", str(root), "--output", "out.json", "."]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(packages)}
    subprocess.run(command, env=environment, cwd=tmp_path, timeout=60, check=True)
    assert json.loads((tmp_path / "out.json").read_text())["tests"] == ["test_one.py::test_it"]


@pytest.mark.skipif(not BASE_PYTHON.exists(), reason="this Python has no base interpreter to run beside it")
def test_reports_that_pytest_is_not_installed(runner: Path, root: Path, tmp_path: Path) -> None:
    command = [str(BASE_PYTHON), "-S", "-I", str(runner), "collect", "--root", str(root), "--output", "out.json", "."]
    done = subprocess.run(command, cwd=tmp_path, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("pytest is not installed for ")
    assert done.stderr.count("\n") == 1
