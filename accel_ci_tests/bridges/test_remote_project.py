"""Builds at a web server: what is asked for, what is tried again, and what happens when the server or the wait fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from dagster_graphql.schema import create_schema
from graphql import parse, validate

from accel_ci.bridges import remote_project
from accel_ci.bridges.build_answer import BuildAnswer, to_document
from accel_ci.bridges.remote_project import TOKEN as VARIABLE
from accel_ci.bridges.remote_project import RemoteProject, build_remotely
from accel_ci.errors import AccelCiError
from accel_ci.progress import LineProgress
from accel_ci_tests.fixtures.dagster_stand_in import TOKEN, Dagster, serve_dagster

QUESTIONS = ("_REPOSITORIES", "_LAUNCH", "_STARTED", "_RUNS", "_TAGGED", "_ANSWERS", "_TERMINATE")
BUILD, OTHER = "main-abc~py3", "main-abc~py4"
GREEN = BuildAnswer(BUILD, "integration / py3", "success", "3 tests passed", passed=3)


@pytest.fixture
def dagster() -> Iterator[Dagster]:
    with serve_dagster(answers={BUILD: to_document(GREEN)}) as found:
        yield found


def build(dagster: Dagster, *, limit_s: float = 60, location: str | None = None) -> list[BuildAnswer]:
    with RemoteProject(dagster.url, TOKEN, location) as project:
        return build_remotely(project, {"trigger": "main"}, limit_s, LineProgress(lambda _: None), every_s=0.05)


@pytest.mark.parametrize("question", [value for name, value in vars(remote_project).items() if name in QUESTIONS])
def test_dagster_has_what_is_asked_for(question: str) -> None:
    assert validate(create_schema().graphql_schema, parse(question)) == []


def test_each_build_has_an_answer_and_a_run_that_fails_has_no_green_one(dagster: Dagster) -> None:
    dagster.answers[OTHER] = to_document(GREEN)
    dagster.statuses[OTHER] = "FAILURE"  # a gate of the project's own has failed the run
    first, second = build(dagster)
    assert first == GREEN
    assert (second.build, second.conclusion) == (OTHER, "failure")
    assert second.title == "the run ended as failure: 3 tests passed"
    assert second.page == f"{dagster.url}/runs/run of {OTHER}"


def test_a_server_that_is_away_is_asked_again_but_never_launched_twice(dagster: Dagster) -> None:
    dagster.fails, dagster.fails_later = 2, 20
    assert build(dagster) == [GREEN]
    assert len(dagster.launched) == 1


@pytest.mark.parametrize(
    ("faults", "location", "message"),
    [
        ({"locations": ("a", "b")}, None, "several projects: choose one of a, b with --location"),
        ({"locations": ("a", "b")}, "c", "no project 'c' that can start builds; there are: a, b"),
        ({"locations": ()}, None, "there are: none"),
        ({"problem": "pull request 7 cannot be found"}, None, "^pull request 7 cannot be found$"),
        ({"answers": {}}, None, "has started no build"),
        ({"answers": {BUILD: "{}"}}, None, "install the same release"),
        ({"statuses": {BUILD: "STARTED"}}, None, "main-abc~py3: started: not ended within 1e-06 hours; the runs go on"),
    ],
    ids=str,
)
def test_what_goes_wrong_is_said(dagster: Dagster, faults: dict[str, object], location: str | None, message: str) -> None:
    for name, value in faults.items():
        setattr(dagster, name, value)
    with pytest.raises(AccelCiError, match=message):
        build(dagster, location=location, limit_s=0.0036)


def test_a_wrong_token_address_or_server_is_said(dagster: Dagster) -> None:
    for url, token, message in (
        (dagster.url, "wrong-token-4711", f"does not let this job in; set .{VARIABLE}"),
        (dagster.url, None, "does not let this job in"),
        ("http://127.0.0.1:9", None, "cannot be reached"),
        ("ftp://user:secret-4711@host", None, "^--url ftp://host: name the web server's address"),
        ("http://ci.example.org", TOKEN, "is only sent over https"),
    ):
        with pytest.raises(AccelCiError, match=message), RemoteProject(url, token) as project:
            project.builds_of("x") if url.endswith(":9") else project.start({})


def test_a_launch_whose_answer_is_lost_is_found_and_not_repeated(dagster: Dagster) -> None:
    dagster.loses_the_launch = True
    assert build(dagster) == [GREEN]
    assert len(dagster.launched) == 1


@contextmanager
def cancellable_job(dagster: Dagster, until: str = "") -> Iterator[subprocess.Popen[str]]:
    """A job that has said that it waits for a step."""
    command = [sys.executable, "-m", "accel_ci.cli", "ci", "--url", dagster.url, "--trigger", "main"]
    environment = {**os.environ, VARIABLE: TOKEN}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            while until and until not in (line := process.stdout.readline()):
                assert line, "it has ended"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_cancelled_ends_its_runs(dagster: Dagster, number: signal.Signals) -> None:
    dagster.statuses[BUILD] = "STARTED"
    with cancellable_job(dagster, "builds: ") as process:
        process.send_signal(number)
        rest = process.communicate(timeout=60)[0]
    assert process.returncode == 130, rest
    assert dagster.ended == ["start", f"run of {BUILD}"]


def test_a_job_that_is_cancelled_at_its_start_ends_what_was_queued(dagster: Dagster) -> None:
    dagster.statuses |= {"start": "STARTED", BUILD: "QUEUED"}
    with cancellable_job(dagster, "start: ") as process:
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)[0]
    assert process.returncode == 130, rest
    assert dagster.ended == ["start", f"run of {BUILD}"]


def test_a_job_that_is_cancelled_during_the_launch_ends_what_it_launched(dagster: Dagster) -> None:
    asked, sent = threading.Event(), threading.Event()

    def hold() -> None:
        asked.set()
        sent.wait(30)

    dagster.before_launch, dagster.statuses[BUILD] = hold, "QUEUED"
    with cancellable_job(dagster) as process:
        assert asked.wait(60)
        process.send_signal(signal.SIGTERM)
        sent.set()
        rest = process.communicate(timeout=60)[0]
    assert process.returncode == 130, rest
    assert dagster.ended == ["start", f"run of {BUILD}"]


def test_a_job_that_is_cancelled_says_if_its_runs_go_on(dagster: Dagster) -> None:
    dagster.statuses[BUILD], dagster.forbids_ends = "STARTED", True
    with cancellable_job(dagster, "builds: ") as process:
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)[0]
    assert process.returncode == 130, rest
    assert f"they may go on, see {dagster.url}/runs: {dagster.url} does not end runs" in rest
