"""The sensor of pull requests, against a stand-in for GitHub, a git repository and an instance; no run is executed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

import dagster as dg
import pytest

from accel_ci.config.settings import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.run_tags import STRANGER_TAG
from accel_ci.github.client import TOKEN as VARIABLE
from accel_ci.ledger.activity import read_activity
from accel_ci.model import Build
from accel_ci.pipelines import DEVICELESS_RESULTS, INTEGRATION
from accel_ci.pull_requests.watched import read_watched
from accel_ci.storage.manifests import PipelineRun
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.github_server import TOKEN, GitHubServer, github_server
from accel_ci_tests.fixtures.queued_runs import queue_run, queued_instance

FIRST_TICK, PREVIEW = "1", "a-time"


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with queued_instance(tmp_path / "dagster") as temporary:
        yield temporary


@pytest.fixture
def github() -> Iterator[GitHubServer]:
    with github_server() as server:
        yield server


class Host:
    """A project on an instance, with its repository at GitHub."""

    def __init__(self, project: Project, instance: dg.DagsterInstance, github: GitHubServer, repository: Path) -> None:
        self.instance, self.github, self.repository = instance, github, repository
        self.workspace = Workspace(project)
        self.definitions = build_definitions(project)

    def commit(self, number: int, text: str) -> str:
        """Make a commit, to which the ref of the pull request points."""
        sha = commit(self.repository, {"backend/a.txt": text})
        git(self.repository, "update-ref", f"refs/pull/{number}/head", sha)
        return sha

    def tick(self, log: str = FIRST_TICK) -> Any:
        repository = self.definitions.get_repository_def()
        context = dg.build_sensor_context(
            instance=self.instance, instance_ref=self.instance.get_ref(), repository_def=repository
        )
        context._log_key = ["a", "pull_requests_sensor", log]
        return repository.get_sensor_def("pull_requests_sensor").evaluate_tick(context)

    def launch(self, request: Any) -> str:
        """Queue the run that a tick asks for, as the daemon does."""
        return queue_run(self.instance, self.definitions, request)

    def status(self, run: str) -> dg.DagsterRunStatus:
        found = self.instance.get_run_by_id(run)
        assert found is not None
        return found.status

    def state(self, number: int) -> str:
        return read_watched(self.workspace).heads[number].state


@pytest.fixture
def make_host(
    tmp_path: Path,
    repository: Path,
    make_project: Callable[..., Project],
    instance: dg.DagsterInstance,
    github: GitHubServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Host]:
    monkeypatch.setenv(VARIABLE, TOKEN)
    (tmp_path / "upstream").mkdir()
    git(tmp_path / "upstream", "init", "--quiet")
    commit(tmp_path / "upstream", {"version.txt": "1"})

    def make(pulls: Mapping[str, Any] = MappingProxyType({}), **sections: Any) -> Host:
        own = {"repository": github.pulls.repository, "api": github.url}
        project = make_project(github=own, pull_requests={"labels": ["ciflow/emu"], **pulls}, **sections)
        return Host(project, instance, github, repository)

    return make


def test_a_run_is_asked_for_until_it_is_there_and_then_never_again(make_host: Callable[..., Host]) -> None:
    host = make_host()
    sha = host.commit(7, "1")
    host.github.pulls.open(7, sha)
    [first] = host.tick().run_requests
    assert (first.job_name, first.partition_key.split("|")[0]) == ("pr", f"pr-7-{sha[:12]}")
    assert (first.tags["accel_ci/pull_request"], first.tags["accel_ci/pull_request_head"]) == ("7", sha)
    [again] = host.tick().run_requests
    assert again.run_key == first.run_key, "the daemon was killed before it made the run; the key makes it one run"
    host.launch(first)
    assert not host.tick().run_requests
    assert host.state(7) == "started"


def test_the_revision_knows_another_branch_that_the_pull_request_is_for(make_host: Callable[..., Host]) -> None:
    host = make_host()
    for number in (7, 8):
        host.github.pulls.open(number, host.commit(number, f"{number}"))
    host.github.pulls.retarget(8, "release-1")
    assert len(host.tick().run_requests) == 2
    keys = [each.key for each in host.workspace.manifests.revisions()]
    found = [host.workspace.manifests.revision(key) for key in sorted(keys)]
    assert [each.target for each in found if each is not None] == [None, "refs/heads/release-1"]


def test_a_newer_push_and_a_closing_end_older_runs(make_host: Callable[..., Host]) -> None:
    host = make_host()
    host.github.pulls.open(7, host.commit(7, "1"))
    host.github.pulls.open(8, host.commit(8, "1b"))
    runs = [host.launch(request) for request in host.tick().run_requests]
    newer = host.commit(7, "2")
    host.github.pulls.push(7, newer)
    [request] = host.tick().run_requests
    assert request.partition_key.startswith(f"pr-7-{newer[:12]}")
    assert [host.status(run) for run in runs] == [dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.QUEUED]
    last = host.launch(request)
    host.github.pulls.close(7)
    host.github.pulls.close(8)
    result = host.tick()
    assert "is closed" in result.skip_message
    assert [host.status(run) for run in (runs[1], last)] == [dg.DagsterRunStatus.CANCELED] * 2


@pytest.mark.parametrize("how", ["reopened", "reset"])
def test_a_commit_that_comes_back_is_built_although_its_run_was_ended(make_host: Callable[..., Host], how: str) -> None:
    host = make_host()
    sha = host.commit(7, "1")
    host.github.pulls.open(7, sha)
    for turn in range(2):  # as often as it happens
        [request] = host.tick().run_requests
        run = host.launch(request)
        assert not host.tick().run_requests
        if how == "reopened":
            host.github.pulls.close(7)
            host.tick()
            host.github.pulls.reopen(7)
        else:
            host.github.pulls.push(7, host.commit(7, f"2 {turn}"))
            host.tick()
            git(host.repository, "update-ref", "refs/pull/7/head", sha)
            host.github.pulls.push(7, sha, reset=True)
        assert host.status(run) == dg.DagsterRunStatus.CANCELED
    [again] = host.tick().run_requests
    assert again.partition_key == request.partition_key
    assert again.run_key != request.run_key, "a run with a key that was used is not started again"
    host.launch(again)
    assert not host.tick().run_requests


def test_a_run_that_a_person_has_ended_is_not_started_again(make_host: Callable[..., Host]) -> None:
    host = make_host()
    host.github.pulls.open(7, host.commit(7, "1"))
    [request] = host.tick().run_requests
    run = host.launch(request)
    host.tick()
    host.instance.run_coordinator.cancel_run(run)
    host.github.pulls.label(7, "other")
    assert not host.tick().run_requests


def test_a_run_of_somebody_else_is_left_alone(make_host: Callable[..., Host]) -> None:
    host = make_host()
    host.github.pulls.open(7, host.commit(7, "1"))
    [request] = host.tick().run_requests
    own = host.launch(request._replace(tags={}))
    host.github.pulls.close(7)
    host.tick()
    assert host.status(own) == dg.DagsterRunStatus.QUEUED


def test_what_was_pushed_after_the_decision_is_not_built(make_host: Callable[..., Host]) -> None:
    host = make_host()
    host.github.pulls.open(7, host.commit(7, "1"))
    later = host.commit(7, "2")  # GitHub's list is a moment old
    result = host.tick()
    assert not result.run_requests
    assert "has not been decided on" in result.skip_message
    host.github.pulls.push(7, later)
    assert len(host.tick().run_requests) == 1
    assert [each.key for each in host.workspace.manifests.revisions()] == [f"pr-7-{later[:12]}"]


def test_a_rate_limit_pauses_the_look(make_host: Callable[..., Host]) -> None:
    host = make_host()
    host.github.pulls.open(7, host.commit(7, "1"))
    host.github.pulls.limit = (429, {"Retry-After": "90"})
    assert "used up until" in host.tick().skip_message
    host.github.pulls.limit = None
    assert "used up until" in host.tick().skip_message
    assert host.github.pulls.requests == []


def test_a_preview_asks_nobody(make_host: Callable[..., Host]) -> None:
    host = make_host()
    host.github.pulls.open(7, host.commit(7, "1"))
    assert "preview" in host.tick(PREVIEW).skip_message
    assert host.github.pulls.requests == []


def test_refs_need_no_github_and_get_no_answer(make_host: Callable[..., Host]) -> None:
    host = make_host({"refs": {"trust_all": True}})
    host.commit(6, "old")
    assert not host.tick().run_requests
    sha = host.commit(7, "1")
    [request] = host.tick().run_requests
    assert request.partition_key.startswith(f"pr-7-{sha[:12]}")
    assert host.github.pulls.requests == []
    names = {sensor.name for sensor in host.definitions.get_repository_def().sensor_defs}
    assert "pull_request_answers_sensor" not in names


def test_without_the_section_there_is_no_sensor(make_project: Callable[..., Project]) -> None:
    names = {sensor.name for sensor in build_definitions(make_project()).get_repository_def().sensor_defs}
    assert not {name for name in names if name.startswith("pull_request")}


SUITES = {
    "lint": {"stage": "deviceless", "commands": [["true"]]},
    "smoke": {"stage": "smoke", "paths": ["tests/smoke"]},
    "unit": {"paths": ["tests/unit"]},
}
STRANGERS = {"strangers": "deviceless", "strangers_user": "23457"}
NEEDS_NO_CARD = ["wheel", "runtime_image", "deviceless_results"]


def with_suites(job: str) -> dict[str, Any]:
    cron = {"cron": "0 2 * * *"} if job in ("nightly", "intraday") else {}
    return {**cron, "suites": [*SUITES]}


def test_a_stranger_s_deviceless_suites_run_once_and_the_rest_after_the_label(make_host: Callable[..., Host]) -> None:
    jobs = {job: with_suites(job) for job in ("nightly", "intraday", "main", "pr")}
    host = make_host(STRANGERS, suites=SUITES, jobs=jobs)
    sha = host.commit(7, "1")
    host.github.pulls.open(7, sha, fork="stranger/backend", author="stranger")
    [first] = host.tick().run_requests
    assert [key.path[-1] for key in first.asset_selection] == NEEDS_NO_CARD
    assert (first.tags[STRANGER_TAG], first.tags["dagster/priority"]) == ("true", "-1"), "trusted builds come first"
    [again] = host.tick().run_requests
    assert again.run_key == first.run_key, "the daemon was killed before it made the run; the key makes it one run"
    run = host.launch(first)
    assert not host.tick().run_requests
    assert host.state(7) == "waiting"

    host.github.pulls.label(7, "ciflow/emu")
    assert not host.tick().run_requests, "the other run waits for this one, whose results it takes"
    assert host.state(7) == "allowed"
    host.instance.run_coordinator.cancel_run(run)
    [rest] = host.tick().run_requests
    assert STRANGER_TAG not in rest.tags
    assert (rest.partition_key, rest.run_key == first.run_key) == (first.partition_key, False)
    assert rest.asset_selection is None, "nothing of the run that was ended is complete"
    host.launch(rest)
    assert not host.tick().run_requests
    assert host.state(7) == "started"


def test_a_newer_push_ends_a_stranger_s_run_and_has_its_own(make_host: Callable[..., Host]) -> None:
    jobs = {job: with_suites(job) for job in ("nightly", "intraday", "main", "pr")}
    host = make_host(STRANGERS, suites=SUITES, jobs=jobs)
    host.github.pulls.open(7, host.commit(7, "1"), fork="stranger/backend", author="stranger")
    [first] = host.tick().run_requests
    run = host.launch(first)
    newer = host.commit(7, "2")
    host.github.pulls.push(7, newer)
    [second] = host.tick().run_requests
    assert second.partition_key.startswith(f"pr-7-{newer[:12]}")
    assert (second.tags[STRANGER_TAG], host.status(run)) == ("true", dg.DagsterRunStatus.CANCELED)


def test_a_stranger_s_build_waits_for_a_label_until_its_commit_is_obsolete(make_host: Callable[..., Host]) -> None:
    jobs = {job: with_suites(job) for job in ("nightly", "intraday", "main", "pr")}
    host = make_host(STRANGERS, suites=SUITES, jobs=jobs)
    sha, manifests = host.commit(7, "1"), host.workspace.manifests
    host.github.pulls.open(7, sha, fork="stranger/backend", author="stranger")
    host.tick()
    build, now = Build(f"pr-7-{sha[:12]}", "py3"), datetime.now(timezone.utc)
    screened = PipelineRun("run", now, now, DEVICELESS_RESULTS, before_label=True)
    manifests.write(manifests.run_file(INTEGRATION, build), screened)

    def activity() -> str:
        host.tick()
        return read_activity(manifests, build)["integration"]

    assert activity() == "waits for a maintainer's label"
    host.github.pulls.push(7, host.commit(7, "2"))
    assert activity() == "replaced by a newer commit"
    git(host.repository, "update-ref", "refs/pull/7/head", sha)
    host.github.pulls.push(7, sha, reset=True)
    assert activity() == "waits for a maintainer's label"
    host.github.pulls.close(7)
    assert activity() == "its pull request is closed"


def test_a_stranger_gets_nothing_by_default(make_host: Callable[..., Host]) -> None:
    host = make_host()
    host.github.pulls.open(7, host.commit(7, "1"), fork="stranger/backend", author="stranger")
    assert not host.tick().run_requests
