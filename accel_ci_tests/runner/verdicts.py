"""The verdicts of plain pytest and of workers on the same suite, in one form, and where they differ."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from accel_ci.model import Limits, SelectedTest, SuiteSession, WorkerSpec
from accel_ci.plan.guided import make_plan
from accel_ci.process.environment import clean_environment
from accel_ci.rounds.driver import run_rounds
from accel_ci.runner.child_session import SESSION
from accel_ci_tests.fixtures.ground import LOCAL_POOL

Verdicts = dict[str, tuple[str, str]]
"""The outcome of each test by id, and the beginning of its message."""

_WORST = ("failed", "subtests failed", "error", "xpassed", "xfailed", "skipped", "passed")


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
    python: Path,
    root: Path,
    runner: Path,
    suites: Mapping[str, tuple[Sequence[str], Sequence[str]]],
    scratch: Path,
    limits: Limits | None = None,
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
    run = run_rounds(LOCAL_POOL, plan.batches, ["0", "1"], spec, limits or Limits(), scratch / "run", lambda *_: None, 1)
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
