"""The examples for other CI systems, replayed: their steps run as those systems run them, against a web server's stand-in.

A Jenkins is not at hand: the script of its shared step is taken from the Groovy file, and runs as `sh` does there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import accel_ci
from accel_ci.bridges.build_answer import BuildAnswer, to_document
from accel_ci.pull_requests.answer import Conclusion, Failure
from accel_ci_tests.fixtures.dagster_stand_in import TOKEN, Dagster, serve_dagster

EXAMPLES = Path(accel_ci.__file__).parents[1] / "examples"
COMMIT = "c" * 40
BUILD = "pr-7-cccccccccccc~py3"
CALLED = "1 tests/t.py::test_a[$(touch hacked)]\n::error::hacked `touch hacked`"


def answered(conclusion: Conclusion, *, passed: int = 3) -> str:
    failures = () if conclusion == "success" else (Failure("unit", CALLED, "new", "it is wrong"),)
    return to_document(BuildAnswer(BUILD, "integration / py3", conclusion, "in words", "", passed, None, failures))


@dataclass(frozen=True)
class Job:
    """A job of a CI system: its exit status, its log, and the folder that it ran in."""

    status: int
    log: str
    folder: Path

    def file(self, name: str) -> str:
        return (self.folder / name).read_text()


@pytest.fixture
def dagster() -> Iterator[Dagster]:
    with serve_dagster(answers={BUILD: answered("success")}) as found:
        yield found


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Job]:
    """Run the command of a step in an empty folder, with nothing in its environment but `accel-ci` and what it is given."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in {
        "accel-ci": f'exec {sys.executable} -m accel_ci.cli "$@"',
        "buildkite-agent": 'printf "%s " "$@" > annotated; cat > annotation.md',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)

    def start(command: list[str], variables: Mapping[str, str]) -> Job:
        folder = tmp_path / "work"
        folder.mkdir(exist_ok=True)
        own = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
        own |= {name: os.environ[name] for name in ("PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
        done = subprocess.run(
            command, cwd=folder, env={**own, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120
        )
        assert not (folder / "hacked").exists()
        return Job(done.returncode, done.stdout.decode(), folder)

    return start


def github(run: Callable[..., Job], folder: Path, inputs: Mapping[str, str], event: object = None, **others: str) -> Job:
    """Run the composite action as a runner does: inputs go to its environment, and `bash` runs a file with the script."""
    action = yaml.safe_load((EXAMPLES / "github_actions" / "action.yaml").read_text())
    [step] = action["runs"]["steps"]
    assert step["shell"] == "bash"
    assert "${{" not in step["run"], "an expression in a script would splice in what an event says"
    given = {name: inputs.get(name, spec["default"]) for name, spec in action["inputs"].items()}
    assert inputs.keys() <= given.keys()

    def value(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: given[found[1]], text)

    (folder / "script.sh").write_text(step["run"])
    (folder / "event.json").write_text(json.dumps(event))
    variables = {
        "GITHUB_ACTIONS": "true", "CI": "true", "GITHUB_SHA": COMMIT, "GITHUB_EVENT_PATH": str(folder / "event.json"),
        "GITHUB_STEP_SUMMARY": "summary.md", "GITHUB_OUTPUT": "outputs",
        **{name: value(text) for name, text in step["env"].items()}, **others,
    }  # fmt: skip
    return run(["bash", "--noprofile", "--norc", "-eo", "pipefail", str(folder / "script.sh")], variables)


def jenkins(run: Callable[..., Job], options: Mapping[str, str], variables: Mapping[str, str]) -> Job:
    """Run the script of the shared step as `sh` does: `sh -xe`, with the variables of `withEnv`."""
    text = (EXAMPLES / "jenkins" / "vars" / "accelCi.groovy").read_text()
    [script] = re.findall(r"script: '''(.*?)'''", text, flags=re.DOTALL)  # such a string of Groovy is taken as it is
    environment = dict(re.findall(r'^        "(ACCEL_CI_\w+)=(.*)",$', text, flags=re.MULTILINE))

    def value(text: str) -> str:
        return re.sub(r"\$\{options\.(\w+) \?: '([^']*)'\}", lambda found: options.get(found[1]) or found[2], text)

    own = {"JENKINS_URL": "https://jenkins.example.org/", "ACCEL_CI_DAGSTER_TOKEN": TOKEN, **variables}
    return run(["sh", "-xe", "-c", script], own | {name: value(text) for name, text in environment.items()})


def buildkite(run: Callable[..., Job], url: str, variables: Mapping[str, str]) -> Job:
    """Run the command of the step as an agent does."""
    pipeline: dict[str, Any] = yaml.safe_load((EXAMPLES / "buildkite" / "pipeline.yaml").read_text())
    [step] = pipeline["steps"]
    assert "$" not in step["command"], "Buildkite would fill it in when the pipeline is uploaded"
    own = {**pipeline["env"], "ACCEL_CI_BUILD_URL": url, "ACCEL_CI_DAGSTER_TOKEN": TOKEN, "BUILDKITE": "true"}
    return run(["bash", "-e", "-c", step["command"]], {**own, "BUILDKITE_COMMIT": COMMIT, **variables})


def test_a_pull_request_in_github_actions(run: Callable[..., Job], dagster: Dagster, tmp_path: Path) -> None:
    head = "d" * 40
    event = {"pull_request": {"number": 7, "title": "$(touch hacked)", "head": {"sha": head, "ref": "`touch hacked`"}}}
    job = github(run, tmp_path, {"url": dagster.url, "token": TOKEN, "variants": "py3 py4"}, event)
    assert job.status == 0, job.log
    assert dagster.chosen() == {
        "trigger": "pr", "backend_ref": head, "pull_request": 7, "variants": ["py3", "py4"], "name": None,
    }  # fmt: skip
    assert "\nsuccess\n" in job.file("outputs")
    assert f"\n{BUILD}\n" in job.file("outputs")
    assert "accelerator: success" in job.file("summary.md")
    assert TOKEN not in job.log


@pytest.mark.parametrize(
    ("conclusion", "strict", "status"), [("failure", "false", 1), ("neutral", "false", 0), ("neutral", "true", 1)]
)
def test_a_failure_in_github_actions(
    run: Callable[..., Job], dagster: Dagster, tmp_path: Path, conclusion: Conclusion, strict: str, status: int
) -> None:
    dagster.answers[BUILD] = answered(conclusion)
    job = github(run, tmp_path, {"url": dagster.url, "token": TOKEN, "strict": strict})
    assert job.status == status, job.log
    commands, off = [], None
    for line in job.log.splitlines():  # as the runner reads a log
        if off is None and (begin := re.fullmatch(r"::stop-commands::(\w+)", line)):
            off = begin[1]
        elif line == f"::{off}::":
            off = None
        elif off is None and re.match(r"::|##\[", line):
            commands.append(line)
    kind = "error" if conclusion == "failure" else "warning"
    assert [line.partition(" ")[0] for line in commands] == [f"::{kind}"] * 2
    assert "::error::hacked" not in job.log.splitlines()


def test_a_fork_with_the_secrets_of_the_repository_starts_nothing(
    run: Callable[..., Job], dagster: Dagster, tmp_path: Path
) -> None:
    event = {"pull_request": {"number": 7, "head": {"sha": COMMIT, "repo": {"full_name": "stranger/backend"}}}}
    inputs = {"url": dagster.url, "token": TOKEN}
    job = github(run, tmp_path, inputs, event, GITHUB_EVENT_NAME="pull_request_target")
    assert (job.status, dagster.launched) == (2, [])
    assert "::error title=accel-ci::a fork's code would be built with this repository's secrets" in job.log
    decided = {
        "GITHUB_EVENT_NAME": "pull_request_target",
        "ACCEL_CI_BUILD_COMMIT": COMMIT,
        "ACCEL_CI_BUILD_PULL_REQUEST": "7",
    }
    assert github(run, tmp_path, inputs, event, **decided).status == 0
    assert dagster.chosen()["pull_request"] == 7


def test_hostile_inputs_are_no_commands(run: Callable[..., Job], dagster: Dagster, tmp_path: Path) -> None:
    inputs = {
        "url": dagster.url,
        "token": TOKEN,
        "variants": "$(touch hacked) `touch hacked` ;touch hacked",
        "location": "'; touch hacked",
    }
    job = github(run, tmp_path, inputs)
    assert job.status == 2
    assert re.search(r"^::error title=accel-ci::.* has no project \"'; touch hacked\"", job.log, flags=re.MULTILINE)
    assert dagster.launched == []


def test_buildkite(run: Callable[..., Job], dagster: Dagster) -> None:
    job = buildkite(run, dagster.url, {"BUILDKITE_PULL_REQUEST": "false", "BUILDKITE_BRANCH": "$(touch hacked)"})
    assert job.status == 0, job.log
    assert (dagster.chosen()["trigger"], dagster.chosen()["backend_ref"]) == ("main", COMMIT)
    assert job.file("annotated") == "annotate --style success --context accel-ci "
    assert "accelerator: success" in job.file("annotation.md")


def test_buildkite_of_a_run_that_left_nothing(run: Callable[..., Job], dagster: Dagster) -> None:
    dagster.answers[BUILD], dagster.statuses[BUILD] = None, "FAILURE"
    job = buildkite(run, dagster.url, {"BUILDKITE_PULL_REQUEST": "7"})
    assert job.status == 1, job.log
    assert "--style error" in job.file("annotated")
    assert "the run ended without results: failure" in job.file("annotation.md")


def test_jenkins(run: Callable[..., Job], dagster: Dagster) -> None:
    dagster.answers[BUILD] = answered("neutral")
    job = jenkins(
        run,
        {"url": dagster.url, "hours": "5.5"},
        {"CHANGE_ID": "7", "GIT_COMMIT": COMMIT, "CHANGE_TITLE": "$(touch hacked)"},
    )
    assert job.status == 0, job.log
    assert (dagster.chosen()["pull_request"], dagster.chosen()["backend_ref"]) == (7, None)
    assert job.file("accel-ci/conclusion.txt") == "neutral\n"
    assert "::error::hacked" in job.file("accel-ci/summary.md")
    assert TOKEN not in job.log


def test_jenkins_without_one_passed_test_is_red(run: Callable[..., Job], dagster: Dagster) -> None:
    dagster.answers[BUILD] = answered("neutral", passed=0)
    job = jenkins(run, {"url": dagster.url}, {"GIT_COMMIT": COMMIT})
    assert (job.status, job.file("accel-ci/conclusion.txt")) == (1, "failure\n")


def test_examples_name_variables_that_the_command_has(run: Callable[..., Job]) -> None:
    known = set(re.findall(r"ACCEL_CI_BUILD_\w+", run(["accel-ci", "ci", "--help"], {"COLUMNS": "500"}).log))
    files = [path for path in EXAMPLES.rglob("*") if path.suffix in (".yaml", ".groovy") and "emu_backend" not in path.parts]
    named = {name for path in files for name in re.findall(r"ACCEL_CI_BUILD_\w+", path.read_text())}
    assert named <= known
    assert {"ACCEL_CI_BUILD_URL", "ACCEL_CI_BUILD_STRICT"} <= named
