"""Verdicts are those of plain pytest: small suites run by `pytest`, and by two workers, on several versions of pytest."""

from __future__ import annotations

import json
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from accel_ci.process.environment import clean_environment
from accel_ci_tests.fixtures.environments import environment_with
from accel_ci_tests.runner import plain_oracle
from accel_ci_tests.runner.small_suites import SUITES, SmallSuite
from accel_ci_tests.runner.verdicts import Verdicts, by_workers, differences, verdicts_of

OLDER = [pytest.param(version, marks=pytest.mark.long) for version in ("7.4.4", "8.4.2")]


@pytest.mark.parametrize("version", ["9.2.0", *OLDER])
def test_small_suites(version: str, runner: Path, tmp_path: Path) -> None:
    suites = {name: suite for name, suite in SUITES.items() if suite.since <= tuple(map(int, version.split(".")))}
    assert len(suites) >= 40
    python = environment_with(tmp_path / "environment", f"pytest=={version}")
    shutil.copy(plain_oracle.__file__, next(tmp_path.glob("environment/lib/python3*/site-packages")))
    root = tmp_path / "sources"
    for name, suite in suites.items():
        lay_out(root / name, suite)
    expected = {name: plain(python, root, name, suite.arguments, tmp_path) for name, suite in suites.items()}
    found = by_workers(python, root, runner, {name: (suite.arguments, [name]) for name, suite in suites.items()}, tmp_path)
    different = [f"{name}: {line}" for name in suites for line in differences(found[name], expected[name])]
    assert not different, "\n".join(different)


def lay_out(folder: Path, suite: SmallSuite) -> None:
    for name, text in suite.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), "utf-8")


def plain(python: Path, root: Path, name: str, arguments: tuple[str, ...], scratch: Path) -> Verdicts:
    """Run plain pytest on a copy of a suite, for tests may write beside themselves."""
    copy = scratch / "plain" / name
    shutil.copytree(root / name, copy)
    output = scratch / "oracle.json"
    output.unlink(missing_ok=True)
    command = [str(python.with_name("pytest")), "-p", "plain_oracle", *arguments, name]
    environment = {**clean_environment({}), "PLAIN_ORACLE": str(output)}
    subprocess.run(command, cwd=copy.parent, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    below = name if (copy / "pytest.ini").exists() else ""
    reports: dict[str, list[tuple[str, str]]] = {}
    for nodeid, category, message, when in json.loads(output.read_bytes()):
        if when == "collect" and category == "skipped":
            continue  # a file that skips itself has no tests
        reports.setdefault("/".join(filter(None, (below, nodeid))), []).append((category, message))
    return verdicts_of(reports)
