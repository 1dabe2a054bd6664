"""Verdicts are those of plain pytest: small suites run by `pytest`, and by two workers, on several versions of pytest."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from accel_ci.model import Limits, SelectedTest, SuiteSession, WorkerSpec
from accel_ci.plan.guided import make_plan
from accel_ci.pool.environment import clean_environment
from accel_ci.rounds.driver import run_rounds
from accel_ci.runner.child_session import SESSION
from accel_ci_tests.fixtures.environments import environment_with
from accel_ci_tests.fixtures.ground import LOCAL_POOL
from accel_ci_tests.runner import plain_oracle
from accel_ci_tests.runner.small_suites import SUITES, SmallSuite

Verdicts = dict[str, tuple[str, str]]
"""The outcome of each test by id, and the beginning of its message."""

_WORST = ("failed", "subtests failed", "error", "xpassed", "xfailed", "skipped", "passed")


@pytest.mark.parametrize("version", ["7.4.4", "8.4.2", "9.2.0"])
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


def verdicts_of(reports: Mapping[str, list[tuple[str, str]]]) -> Verdicts:
    """Name each test's outcome. Two items of one id are told apart as the runner does."""
    found: Verdicts = {}
    for test, of_test in reports.items():
        items = [of_test]
        if test.endswith("::same"):
            items = [[of_test[1]], [of_test[0]]] if of_test[0][0] == "passed" else [[each] for each in of_test]
        for ordinal, each in enumerate(items, 1):
            category, message = min(each, key=lambda one: _WORST.index(one[0]))
            outcome = "failed" if category == "subtests failed" else category
            found[test if ordinal == 1 else f"{test}#{ordinal}"] = outcome, comparable(outcome, message)
    return found


def by_workers(
    python: Path, root: Path, runner: Path, suites: Mapping[str, tuple[Sequence[str], Sequence[str]]], scratch: Path
) -> dict[str, Verdicts]:
    """Collect suites, given with their arguments and paths, and run them on two cards."""
    sessions = {name: SuiteSession(tuple(paths), tuple(arguments)) for name, (arguments, paths) in suites.items()}
    tests = []
    for name, session in sessions.items():
        output = scratch / "collected.json"
        options = [f"--pytest-arg={argument}" for argument in session.pytest_args]
        where = ["--root", str(root), "--output", str(output)]
        command = [str(python), str(runner), "collect", *where, *options, *session.paths]
        subprocess.run(command, env=clean_environment({}), stdin=subprocess.DEVNULL, check=True, timeout=300)
        collected = json.loads(output.read_bytes())
        groups = collected["groups"]
        tests += [SelectedTest(name, test, groups.get(test)) for test in collected["tests"]]
        tests += [SelectedTest(name, error["path"]) for error in collected["errors"]]
    spec = WorkerSpec(str(python), str(root), clean_environment({}), "CARD", sessions=sessions)
    plan = make_plan(tests, {}, 2)
    run = run_rounds(LOCAL_POOL, plan.batches, ["0", "1"], spec, Limits(), scratch / "run", lambda *_: None, 1)
    found: dict[str, Verdicts] = {name: {} for name in suites}
    for attempt in run.attempts:
        found[attempt.suite][attempt.test] = attempt.outcome, comparable(attempt.outcome, attempt.message or "")
    for verdicts in found.values():
        give_session_errors_to_their_tests(verdicts)
    assert not run.not_run
    return found


def give_session_errors_to_their_tests(verdicts: Verdicts) -> None:
    """Plain pytest gives an error at the end of a session to the last test, which a worker has reported by then."""
    if SESSION in verdicts:
        outcome, message = verdicts.pop(SESSION)
        test = re.search(r"after (\S+):", message)
        assert test is not None, message
        verdicts[test[1]] = outcome, message.strip().splitlines()[-1].partition(": ")[2]


def comparable(outcome: str, message: str) -> str:
    """A message without what differs from run to run; empty for a test that did not fail."""
    if outcome in ("passed", "xpassed", "xfailed", "skipped"):
        return ""
    text = re.sub(r"0x[0-9a-f]+|/\S*/(plain|sources)/|^Failed: ", "", message)
    return " ".join(text.split())


def differences(found: Verdicts, expected: Verdicts) -> list[str]:
    """Describe the tests whose outcome or message differs; a worker's message holds more than pytest's."""
    lines = []
    for test in sorted({*found, *expected}):
        outcome, message = found.get(test, ("missing", ""))
        right, its_message = expected.get(test, ("missing", ""))
        if outcome != right or its_message[:300] not in message:
            lines.append(f"{test[:90]}: {outcome} in place of {right}: {message[:400]!r}, {its_message[:300]!r}")
    return lines
