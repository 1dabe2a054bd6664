"""The commands of a backend's end of the relay."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from accel_ci.cli import main
from accel_ci.cli.relay_downstream import calling_workflow
from accel_ci.config.settings import Project
from accel_ci.relay.downstream.deliveries import CallingWorkflow, deliveries_of, read_dispatch
from accel_ci.relay.listening import listen
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.relay import REPOSITORY, event, pull_request

SHA = "a" * 40
GITHUB = {
    "GITHUB_RUN_ID": "11", "GITHUB_RUN_ATTEMPT": "2", "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "o/r",
}  # fmt: skip


def run(project: Project, *arguments: str, given: bytes = b"", **environment: str) -> Result:
    environment = {"GITHUB_RUN_ID": "", "ACCEL_CI_HOME": "", **environment}
    return CliRunner().invoke(
        main, ["--config", str(project.config_path), "relay", *arguments], input=given, env=environment
    )


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    return make_project(relay={})


def test_a_dispatch_is_taken_with_the_workflow_that_passes_it_on(project: Project) -> None:
    done = run(project, "dispatch", given=event(pull_request(SHA)), **GITHUB)
    assert (done.exit_code, done.output) == (0, f"d-1: refs/pull/7/head {SHA[:12]}\n")
    [kept] = deliveries_of(Workspace(project)).all()
    assert kept.delivery.caller == CallingWorkflow("11", "2", "https://github.com/o/r/actions/runs/11")
    assert calling_workflow({**GITHUB, "GITHUB_RUN_ID": "11; x"}) is None
    assert calling_workflow({}) is None


@pytest.mark.parametrize("document", [b"", b"{}", b"\xff", b"x" * (2 << 20)])
def test_what_is_no_dispatch_exits_with_2(project: Project, document: bytes) -> None:
    done = run(project, "dispatch", given=document)
    assert done.exit_code == 2
    assert done.output.startswith("accel-ci: ")
    assert deliveries_of(Workspace(project)).all() == []


def test_waiting_ends_at_once_for_a_delivery_that_needs_no_build(project: Project) -> None:
    deliveries = deliveries_of(Workspace(project))
    deliveries.add(read_dispatch(event(pull_request(SHA)), REPOSITORY, datetime.now(timezone.utc)))
    [kept] = deliveries.all()
    deliveries.note(kept, state="refused", reason="there is nothing to build")
    done = run(project, "dispatch", "--report", given=event(pull_request(SHA)))
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "d-1: there is nothing to build")


@pytest.mark.parametrize(
    ("sections", "arguments", "words"),
    [
        ({}, ["dispatch"], "has no section 'relay'"),
        ({"relay": {}}, ["receive"], "$ACCEL_CI_RELAY_WEBHOOK_SECRET must hold the secret"),
        ({"relay": {}}, ["report"], "nothing has been built yet"),
    ],
)
def test_a_command_that_cannot_work_says_what_is_missing(
    make_project: Callable[..., Project], sections: dict[str, Any], arguments: list[str], words: str, tmp_path: Path
) -> None:
    done = run(make_project(**sections), *arguments, given=event(pull_request(SHA)))
    assert done.exit_code == 2
    assert words in done.output


def test_a_port_that_is_taken(project: Project) -> None:
    with listen("127.0.0.1:0") as taken:
        port = str(taken.getsockname()[1])
        done = run(project, "receive", "--port", port, ACCEL_CI_RELAY_WEBHOOK_SECRET="a secret of the webhook")
    assert done.exit_code == 2
    assert done.output == f"accel-ci: cannot listen on 127.0.0.1:{port}; is the port taken?\n"
