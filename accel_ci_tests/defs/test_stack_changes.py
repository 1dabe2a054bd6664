"""The sensor of the components' change requests, with real git repositories and an instance; no run is executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from accel_ci.config.settings import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.errors import AccelCiError, SourceChangedError
from accel_ci.github.client import TOKEN as VARIABLE
from accel_ci.model import Build, Revision
from accel_ci.pull_requests.watched import read_watched, watched_file
from accel_ci.release.facts import decide
from accel_ci.repair import repair
from accel_ci.source.revision import ComponentChange, components_at_changes, resolve_revision
from accel_ci.source.revision import tests_the_backends_change as of_the_backend_alone  # pytest would take it for a test
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.github_server import TOKEN, github_server
from accel_ci_tests.fixtures.queued_runs import queue_run, queued_instance
from accel_ci_tests.fixtures.stack_repositories import make_stack

CANCELED, QUEUED = dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.QUEUED


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with queued_instance(tmp_path / "dagster") as temporary:
        yield temporary


class Host:
    """A project whose two components have change requests, on an instance."""

    def __init__(self, project: Project, instance: dg.DagsterInstance, folder: Path) -> None:
        self.project, self.instance, self.folder = project, instance, folder
        self.workspace, self.definitions = Workspace(project), build_definitions(project)

    def push(self, component: str, number: int, text: str) -> str:
        """Make a commit beside the branch, to which the ref of the change points."""
        repository = self.folder / component
        main = git(repository, "rev-parse", "HEAD")
        sha = commit(repository, {"README": text})
        git(repository, "update-ref", f"refs/pull/{number}/head", sha)
        git(repository, "reset", "--quiet", "--hard", main)
        return sha

    def tick(self, log: str = "1", sensor: str = "stack_changes_sensor") -> Any:
        repository = self.definitions.get_repository_def()
        context = dg.build_sensor_context(
            instance=self.instance, instance_ref=self.instance.get_ref(), repository_def=repository
        )
        context._log_key = ["a", sensor, log]
        return repository.get_sensor_def(sensor).evaluate_tick(context)

    def queue(self, request: Any) -> str:
        return queue_run(self.instance, self.definitions, request)

    def status(self, run: str) -> dg.DagsterRunStatus:
        found = self.instance.get_run_by_id(run)
        assert found is not None
        return found.status

    def revision(self, request: Any) -> Revision:
        found = self.workspace.manifests.revision(request.partition_key.partition("|")[0])
        assert found is not None
        return found


@pytest.fixture
def host(tmp_path: Path, repository: Path, make_project: Callable[..., Project], instance: dg.DagsterInstance) -> Host:
    (tmp_path / "upstream").mkdir()
    git(tmp_path / "upstream", "init", "--quiet", "-b", "main")
    commit(tmp_path / "upstream", {"version.txt": "1"})
    stack = make_stack(tmp_path)
    for component in stack["components"]:
        component["changes"] = {"trust_all": True}
    return Host(make_project(stack=stack, release={}), instance, tmp_path)


def test_a_new_change_is_built_once_at_its_commit_with_the_others_as_configured(host: Host) -> None:
    host.push("tool", 6, "there before")
    assert "noted 1 changes of tool" in host.tick().skip_message
    sha = host.push("tool", 7, "new")
    [request] = host.tick().run_requests
    revision = host.revision(request)
    assert (request.job_name, revision.key, revision.trigger) == ("pr", f"pr-tool-7-{sha[:12]}", "pr")
    assert (revision.stack["tool"].ref, revision.stack["tool"].sha) == ("refs/pull/7/head", sha)
    assert revision.stack["library"].ref == "refs/heads/main"
    assert revision.backend.ref == host.project.settings.backend.ref
    # The daemon is killed before it makes the run, and the library has moved since.
    commit(host.folder / "library", {"README": "moved"})
    [again] = host.tick().run_requests
    assert (again.run_key, again.partition_key) == (request.run_key, request.partition_key)
    host.queue(again)
    assert not host.tick().run_requests
    assert read_watched(host.workspace, "tool").heads[7].state == "started"


def test_the_change_requests_of_a_component_at_github_get_check_runs_there(
    host: Host, make_project: Callable[..., Project], instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = host.project.settings.model_dump(mode="json", exclude_unset=True)["stack"]
    stack["components"][1]["github"] = "org/tool"
    monkeypatch.setenv(VARIABLE, TOKEN)
    with github_server() as github:
        section = {"repository": "org/backend", "api": github.url}
        answering = Host(make_project(stack=stack, github=section), instance, host.folder)
        answering.tick()
        shas = {number: answering.push("tool", number, f"new {number}") for number in (7, 8)}
        answering.push("library", 7, "of a component elsewhere")
        for request in answering.tick().run_requests:
            answering.queue(request)

        def answer() -> tuple[str | None, list[tuple[str, str]]]:
            """The words of a tick, and the commit and status of each check run."""
            said = answering.tick(sensor="stack_answers_sensor").skip_message
            return said, [(run["head_sha"], run["status"]) for run in github.check_runs.runs.values()]

        assert answer() == ("tool:7: answered; tool:8: answered", [(shas[7], "queued"), (shas[8], "queued")])
        assert {run["repository"] for run in github.check_runs.runs.values()} == {"org/tool"}
        assert answer()[0] == "no answer has changed"
        git(host.folder / "tool", "update-ref", "-d", "refs/pull/8/head")
        answering.tick()
        assert answer()[1] == [(shas[7], "queued"), (shas[8], "completed")]
        assert not github.pulls.comments


def test_a_newer_commit_and_a_closing_end_the_runs_of_that_change_alone(host: Host) -> None:
    host.tick()
    for component, number in (("library", 7), ("tool", 7), ("tool", 8)):
        host.push(component, number, f"{component} {number}")
    runs = [host.queue(request) for request in host.tick().run_requests]
    assert len(runs) == 3
    newer = host.push("tool", 7, "newer")
    [request] = host.tick().run_requests
    assert host.revision(request).stack["tool"].sha == newer
    assert [host.status(run) for run in runs] == [QUEUED, CANCELED, QUEUED]
    host.queue(request)
    git(host.folder / "tool", "update-ref", "-d", "refs/pull/8/head")
    assert "tool:8: is closed" in host.tick().skip_message
    assert [host.status(run) for run in runs] == [QUEUED, CANCELED, CANCELED]


def test_a_commit_that_comes_back_is_built_again_where_its_run_was_ended(host: Host) -> None:
    host.tick()
    sha = host.push("tool", 7, "first")
    [first] = host.tick().run_requests
    host.queue(first)
    host.push("tool", 7, "second")
    host.queue(host.tick().run_requests[0])
    git(host.folder / "tool", "update-ref", "refs/pull/7/head", sha)
    [back] = host.tick().run_requests
    assert back.partition_key == first.partition_key
    assert back.run_key != first.run_key, "Dagster starts no second run of a key"
    host.queue(back)
    assert not host.tick().run_requests


def test_a_repository_that_is_away_is_named_and_what_is_new_is_built_later(host: Host) -> None:
    host.tick()
    (host.folder / "tool").rename(host.folder / "gone")
    assert "tool cannot be asked" in host.tick().skip_message
    host.push("library", 7, "new")
    with pytest.raises(AccelCiError, match="no change can be built: library:7: the component tool of the stack"):
        host.tick()
    (host.folder / "library").rename(host.folder / "gone, too")
    with pytest.raises(AccelCiError, match="no component can be asked for its changes: library cannot be asked"):
        host.tick()
    for gone, name in (("gone", "tool"), ("gone, too", "library")):
        (host.folder / gone).rename(host.folder / name)
    [request] = host.tick().run_requests
    assert host.revision(request).key.startswith("pr-library-7-")


def test_a_damaged_record_is_named_and_repaired(host: Host) -> None:
    host.tick()
    watched_file(host.workspace, "tool").write_text("{")
    assert "tool cannot be asked" in host.tick().skip_message
    assert any(each.name == "pull_requests/watched-tool.json" for each in repair(host.workspace))
    assert "noted 0 changes of tool" in host.tick().skip_message


def test_a_preview_writes_nothing(host: Host) -> None:
    host.push("tool", 7, "new")
    assert "preview" in host.tick("a-time").skip_message
    assert not watched_file(host.workspace, "tool").exists()


def test_a_change_that_is_pushed_between_look_and_build_gets_no_revision(host: Host) -> None:
    sha = host.push("tool", 7, "new")
    known = host.workspace.manifests.revision
    with pytest.raises(SourceChangedError, match=f"is not at {'a' * 40} any more, but at {sha}"):
        resolve_revision(host.project, "pr", known, change=ComponentChange("tool", 7, "refs/pull/7/head", "a" * 40))


def test_all_tests_run_for_a_change_of_a_component(host: Host) -> None:
    host.tick()
    host.push("tool", 7, "new")
    revision, settings = host.revision(host.tick().run_requests[0]), host.project.settings
    assert components_at_changes(settings, revision) == ("tool",)
    assert not of_the_backend_alone(settings, revision)
    assert of_the_backend_alone(settings, replace(revision, stack={}))


@pytest.mark.parametrize("by_hand", [False, True], ids=["by the sensor", "by hand"])
def test_no_release_has_a_component_at_a_change(host: Host, *, by_hand: bool) -> None:
    host.tick()
    host.push("tool", 7, "new")
    manifests = host.workspace.manifests
    if by_hand:
        at_change = {"tool": "refs/pull/7/head"}
        revision = manifests.add_revision(resolve_revision(host.project, "manual", manifests.revision, components=at_change))
    else:
        revision = host.revision(host.tick().run_requests[0])
    refused = {each.name: each for each in decide(host.workspace, Build(revision.key, "py3")).refused_by}
    assert refused["merged"].firm
    assert re.search("tool refs/pull/7/head", refused["merged"].value)
    assert ("trigger" in refused) is not by_hand
    asked = resolve_revision(host.project, "manual", manifests.revision, slug="as configured")
    other = manifests.add_revision(asked)
    assert "merged" not in {each.name for each in decide(host.workspace, Build(other.key, "py3")).criteria}


def test_without_changes_there_is_no_such_sensor(
    tmp_path: Path, repository: Path, make_project: Callable[..., Project]
) -> None:
    project = make_project(stack=make_stack(tmp_path))
    assert "stack_changes_sensor" not in {sensor.name for sensor in build_definitions(project).sensors or ()}
