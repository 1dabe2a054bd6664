"""The job that calls, from the variables of each CI system; none of their values is trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accel_ci.bridges.calling_job import CallingJob, calling_job

COMMIT, MERGE = "a" * 40, "b" * 40
GITHUB = {"GITHUB_ACTIONS": "true", "GITHUB_SHA": MERGE}
BUILDKITE = {"BUILDKITE": "true", "BUILDKITE_COMMIT": COMMIT}
JENKINS = {"JENKINS_URL": "https://jenkins.example.org/", "GIT_COMMIT": COMMIT}


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, CallingJob()),
        ({"GITHUB_SHA": COMMIT}, CallingJob()),
        (GITHUB, CallingJob("github", MERGE)),
        (BUILDKITE | {"BUILDKITE_PULL_REQUEST": "false"}, CallingJob("buildkite", COMMIT)),
        (BUILDKITE | {"BUILDKITE_PULL_REQUEST": "7"}, CallingJob("buildkite", COMMIT, 7)),
        (BUILDKITE | {"BUILDKITE_COMMIT": "HEAD"}, CallingJob("buildkite")),
        (BUILDKITE | {"BUILDKITE_COMMIT": "--upload-pack=x"}, CallingJob("buildkite")),
        (BUILDKITE | {"BUILDKITE_PULL_REQUEST": "7; ls"}, CallingJob("buildkite", COMMIT)),
        (JENKINS, CallingJob("jenkins", COMMIT)),
        (JENKINS | {"CHANGE_ID": "7"}, CallingJob("jenkins", None, 7)),
        (JENKINS | {"CHANGE_ID": "٧"}, CallingJob("jenkins", COMMIT)),
    ],
    ids=str,
)
def test_a_job_by_its_variables(variables: dict[str, str], job: CallingJob) -> None:
    assert calling_job(variables) == job


@pytest.mark.parametrize(
    ("event", "job"),
    [
        ({"pull_request": {"number": 7, "head": {"sha": COMMIT}}}, CallingJob("github", COMMIT, 7)),
        ({"pull_request": {"number": 7, "head": {"sha": "$(id)"}}}, CallingJob("github", None, 7)),
        ({"pull_request": {"number": True, "head": {"sha": COMMIT}}}, CallingJob("github", MERGE)),
        ({"pull_request": []}, CallingJob("github", MERGE)),
        ({"after": COMMIT}, CallingJob("github", MERGE)),
        ([], CallingJob("github", MERGE)),
    ],
    ids=str,
)
def test_a_pull_request_of_github_is_its_head(tmp_path: Path, event: Any, job: CallingJob) -> None:
    file = tmp_path / "event.json"
    file.write_text(json.dumps(event))
    assert calling_job(GITHUB | {"GITHUB_EVENT_PATH": str(file)}) == job


@pytest.mark.parametrize(
    ("event_name", "head", "is_unsafe"),
    [
        ("pull_request", {"repo": {"full_name": "stranger/backend"}}, False),  # which has no secret
        ("pull_request_target", {"repo": {"full_name": "example/backend"}}, False),
        ("pull_request_target", {"repo": {"full_name": "stranger/backend"}}, True),
        ("pull_request_target", {"repo": None}, True),
        ("pull_request_target", {}, True),
    ],
    ids=str,
)
def test_a_fork_with_secrets_is_told(tmp_path: Path, event_name: str, head: dict[str, object], is_unsafe: bool) -> None:
    file = tmp_path / "event.json"
    pull = {"number": 7, "head": {"sha": COMMIT, **head}, "base": {"repo": {"full_name": "example/backend"}}}
    file.write_text(json.dumps({"pull_request": pull}))
    job = calling_job(GITHUB | {"GITHUB_EVENT_PATH": str(file), "GITHUB_EVENT_NAME": event_name})
    assert job == CallingJob("github", COMMIT, 7, is_unsafe)


OWN, FORK = "git@github.com:example/backend.git", "git://github.com/stranger/backend.git"


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        (JENKINS | {"CHANGE_ID": "7", "CHANGE_FORK": "stranger"}, CallingJob("jenkins", None, 7, True)),
        (JENKINS | {"CHANGE_ID": "7", "CHANGE_FORK": ""}, CallingJob("jenkins", None, 7)),
        (BUILDKITE | {"BUILDKITE_REPO": OWN, "BUILDKITE_PULL_REQUEST_REPO": FORK}, True),
        (BUILDKITE | {"BUILDKITE_REPO": OWN, "BUILDKITE_PULL_REQUEST_REPO": "https://github.com/Example/backend/"}, False),
        (BUILDKITE | {"BUILDKITE_REPO": OWN, "BUILDKITE_PULL_REQUEST_REPO": "https://x@github.com/example/backend"}, False),
        (BUILDKITE | {"BUILDKITE_REPO": OWN, "BUILDKITE_PULL_REQUEST_REPO": "https://other.org/example/backend"}, True),
        (BUILDKITE | {"BUILDKITE_REPO": OWN, "BUILDKITE_PULL_REQUEST_REPO": "-x"}, True),
        (BUILDKITE | {"BUILDKITE_REPO": OWN, "BUILDKITE_PULL_REQUEST_REPO": ""}, False),
    ],
    ids=str,
)
def test_a_fork_on_an_agent_of_one_s_own_is_told(variables: dict[str, str], job: CallingJob | bool) -> None:
    """The agent has what it has for all jobs, also the token of the web server."""
    if isinstance(job, bool):
        variables, job = variables | {"BUILDKITE_PULL_REQUEST": "7"}, CallingJob("buildkite", COMMIT, 7, job)
    assert calling_job(variables) == job


def test_an_event_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text("{")
    for name in ("event.json", "absent.json"):
        assert calling_job(GITHUB | {"GITHUB_EVENT_PATH": str(tmp_path / name)}) == CallingJob("github", MERGE)
