"""The sensors that have deliveries built, against git repositories and an instance; no run is executed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from accel_ci.config.settings import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.runs import create_run
from accel_ci.errors import AccelCiError
from accel_ci.model import Build
from accel_ci.relay.downstream.deliveries import Outcome, deliveries_of, read_dispatch
from accel_ci.source.revision import tests_upstreams_change as is_of_upstream
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.project import minimal_config
from accel_ci_tests.fixtures.relay import REPOSITORY, event, pull_request, push

SHA, OTHER = "a" * 40, "b" * 40


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    home = tmp_path / "dagster"
    home.mkdir()
    queue = {"run_coordinator": {"module": "dagster.core.run_coordinator", "class": "QueuedRunCoordinator"}}
    with dg.DagsterInstance.local_temp(str(home), overrides=queue) as temporary:
        yield temporary


@pytest.fixture
def project(tmp_path: Path, repository: Path, make_project: Callable[..., Project]) -> Project:
    """Two variants, of which one is built with PyTorch from main."""
    (tmp_path / "upstream").mkdir()
    git(tmp_path / "upstream", "init", "--quiet")
    commit(tmp_path / "upstream", {"version.txt": "1"})
    variant = minimal_config()["variants"][0]  # type: ignore[index]
    variants = [{**variant, "name": "pinned"}, {**variant, "name": "main", "torch_source": "main"}]
    return make_project(variants=variants, relay={"enabled": True})


class Downstream:
    """A project on an instance, to which dispatches come."""

    def __init__(self, project: Project, instance: dg.DagsterInstance) -> None:
        self.project, self.instance = project, instance
        self.definitions = build_definitions(project)
        self.deliveries = deliveries_of(Workspace(project))

    def dispatch(self, payload: dict[str, Any], delivery_id: str) -> None:
        self.deliveries.add(read_dispatch(event(payload, delivery_id), REPOSITORY, datetime.now(timezone.utc)))

    def tick(self, name: str = "relay_pr_sensor", *, log: str = "1") -> Any:
        """Evaluate a sensor. The daemon gives its log the number of the tick."""
        repository = self.definitions.get_repository_def()
        context = dg.build_sensor_context(
            instance=self.instance, instance_ref=self.instance.get_ref(), repository_def=repository
        )
        context._log_key = ["a", name, log]
        return repository.get_sensor_def(name).evaluate_tick(context)

    def launch(self, request: Any) -> str:
        """Queue the run that a tick asks for, as the daemon does."""
        job = self.definitions.resolve_job_def(request.job_name)
        revision, variant = request.partition_key.split("|")
        tags = {**request.tags, "dagster/run_key": request.run_key}
        origin = create_run(self.instance, None, job, Build(revision, variant), {}).remote_job_origin
        queued = dg.DagsterRunStatus.QUEUED
        return self.instance.create_run_for_job(job, tags=tags, status=queued, remote_job_origin=origin).run_id

    def outcome(self, delivery_id: str) -> Outcome:
        kept = self.deliveries.find(delivery_id)
        assert kept is not None
        return kept.outcome

    def status(self, run: str) -> dg.DagsterRunStatus:
        found = self.instance.get_run_by_id(run)
        assert found is not None
        return found.status


@pytest.fixture
def downstream(project: Project, instance: dg.DagsterInstance) -> Downstream:
    return Downstream(project, instance)


def test_a_pull_request_of_upstream_is_built_with_the_backend_as_it_is(downstream: Downstream) -> None:
    downstream.dispatch(pull_request(SHA), "d-1")
    [request] = downstream.tick().run_requests
    assert (request.job_name, request.partition_key, request.run_key) == ("pr", f"pr-7-{SHA[:12]}|main", "relay:d-1:main")
    assert request.tags["accel_ci/delivery"] == "d-1"
    revision = Workspace(downstream.project).manifests.revision(f"pr-7-{SHA[:12]}")
    assert revision is not None
    assert (revision.trigger, revision.upstream.sha, revision.upstream.ref) == ("pr", SHA, "refs/pull/7/head")
    assert revision.backend.ref == downstream.project.settings.backend.ref
    assert is_of_upstream(revision), "so that the tests are not chosen by a change of the backend"
    assert downstream.outcome("d-1").variants == ("main",), "the variant with a released PyTorch would not test the change"


def test_a_run_is_asked_for_until_it_is_there_and_then_never_again(downstream: Downstream) -> None:
    downstream.dispatch(pull_request(SHA), "d-1")
    [first] = downstream.tick().run_requests
    [again] = downstream.tick().run_requests
    assert again.run_key == first.run_key, "the daemon was killed before it made the run; the key makes it one run"
    downstream.launch(first)
    assert not downstream.tick().run_requests
    assert downstream.outcome("d-1").state == "started"
    downstream.dispatch(pull_request(SHA), "d-1")
    assert not downstream.tick().run_requests, "it came a second time"


@pytest.mark.parametrize("first", ["d-1", "poll-7-aaaaaaaaaaaa"])
def test_a_change_that_is_dispatched_and_found_by_polling_is_built_once(downstream: Downstream, first: str) -> None:
    second = "poll-7-aaaaaaaaaaaa" if first == "d-1" else "d-1"
    downstream.dispatch(pull_request(SHA), first)
    [request] = downstream.tick().run_requests
    downstream.dispatch(pull_request(SHA), second)
    run = downstream.launch(request)
    assert not downstream.tick().run_requests
    ours, theirs = downstream.outcome(first), downstream.outcome(second)
    assert (theirs.asked_at, theirs.revision, theirs.variants) == (ours.asked_at, ours.revision, ours.variants)
    downstream.dispatch(pull_request(SHA, action="labeled"), "d-2")
    [other] = downstream.tick().run_requests
    assert other.run_key == "relay:d-2:main", "a second dispatch asks for another run"
    downstream.dispatch(pull_request(SHA, action="closed", at="2026-11-30T09:00:00Z"), "d-3")
    downstream.tick()
    assert downstream.status(run) == dg.DagsterRunStatus.CANCELED
    assert [downstream.outcome(name).state for name in (first, second)] == ["obsolete", "obsolete"]


def test_both_ways_in_one_tick_make_one_run(downstream: Downstream) -> None:
    downstream.dispatch(pull_request(SHA), "poll-7-aaaaaaaaaaaa")
    downstream.dispatch(pull_request(SHA), "d-1")
    assert len(downstream.tick().run_requests) == 1
    assert downstream.outcome("d-1").revision == f"pr-7-{SHA[:12]}"


def test_a_commit_of_main_is_built_by_the_job_main(downstream: Downstream) -> None:
    downstream.dispatch(push(SHA), "c-1")
    downstream.dispatch(push(OTHER, "refs/heads/release"), "c-2")
    assert not downstream.tick().run_requests, "the other sensor has pull requests alone"
    [request] = downstream.tick("relay_main_sensor").run_requests
    assert (request.job_name, request.partition_key) == ("main", f"main-{SHA[:12]}|main")
    assert downstream.outcome("c-2").state == "refused"
    assert "refs/heads/release is not the branch" in downstream.outcome("c-2").reason


@pytest.mark.parametrize(
    ("action", "sha", "reason"), [("closed", SHA, "was closed"), ("synchronize", OTHER, "a newer commit")]
)
def test_a_closed_or_superseded_pull_request_ends_its_runs(
    downstream: Downstream, action: str, sha: str, reason: str
) -> None:
    downstream.dispatch(pull_request(SHA), "d-1")
    downstream.dispatch(pull_request(SHA, number=8), "other")
    requests = {request.tags["accel_ci/delivery"]: request for request in downstream.tick().run_requests}
    run, other = downstream.launch(requests["d-1"]), downstream.launch(requests["other"])
    downstream.dispatch(pull_request(sha, action=action, at="2026-11-30T09:00:00Z"), "d-2")
    tick = downstream.tick()
    assert downstream.status(run) == dg.DagsterRunStatus.CANCELED
    assert downstream.status(other) == dg.DagsterRunStatus.QUEUED, "that of another pull request goes on"
    assert downstream.outcome("d-1").state == "obsolete"
    assert reason in downstream.outcome("d-1").reason
    asked = [request.run_key for request in tick.run_requests or []]
    assert asked == ([] if action == "closed" else ["relay:d-2:main"])


def test_a_run_that_starts_while_its_delivery_becomes_obsolete_is_ended_by_the_next_tick(downstream: Downstream) -> None:
    downstream.dispatch(pull_request(SHA), "d-1")
    [request] = downstream.tick().run_requests
    downstream.dispatch(pull_request(SHA, action="closed", at="2026-11-30T09:00:00Z"), "d-2")
    downstream.tick()
    run = downstream.launch(request)
    downstream.tick()
    assert downstream.status(run) == dg.DagsterRunStatus.CANCELED


def test_a_late_delivery_of_an_older_commit_starts_nothing(downstream: Downstream) -> None:
    downstream.dispatch(pull_request(OTHER, action="synchronize", at="2026-11-30T09:00:00Z"), "d-2")
    [request] = downstream.tick().run_requests
    run = downstream.launch(request)
    downstream.dispatch(pull_request(SHA), "d-1")
    assert not downstream.tick().run_requests
    assert downstream.status(run) == dg.DagsterRunStatus.QUEUED
    assert downstream.outcome("d-1").state == "obsolete"


def test_nothing_is_built_where_no_variant_would_test_the_change(
    make_project: Callable[..., Project], repository: Path, instance: dg.DagsterInstance
) -> None:
    downstream = Downstream(make_project(relay={}), instance)
    downstream.dispatch(pull_request(SHA), "d-1")
    tick = downstream.tick()
    assert not tick.run_requests
    assert "no variant is built with PyTorch from main" in tick.skip_message


def test_an_upstream_sha_that_the_backend_cannot_be_resolved_with_is_tried_again(downstream: Downstream) -> None:
    downstream.dispatch(pull_request(SHA), "d-1")
    repository = downstream.project.root / "repository"
    repository.rename(repository.with_name("away"))
    with pytest.raises(AccelCiError, match="there is no such folder"):
        downstream.tick()
    assert downstream.outcome("d-1").state == "new"
    repository.with_name("away").rename(repository)
    assert len(downstream.tick().run_requests) == 1


def test_a_project_without_the_section_has_no_such_sensors(make_project: Callable[..., Project]) -> None:
    sensors = build_definitions(make_project()).get_repository_def().sensor_defs
    assert not [sensor.name for sensor in sensors if sensor.name.startswith("relay")]


def test_a_preview_writes_nothing(downstream: Downstream) -> None:
    downstream.dispatch(pull_request(SHA), "d-1")
    for name in ("relay_pr_sensor", "relay_main_sensor"):
        tick = downstream.tick(name, log="a-preview")
        assert not tick.run_requests
        assert "this is a preview" in tick.skip_message
    assert downstream.outcome("d-1").state == "new"
    assert Workspace(downstream.project).manifests.revisions() == []


def test_the_daemon_reports_only_where_it_has_a_token(make_project: Callable[..., Project]) -> None:
    """A token of GitHub's is one of a workflow, which the daemon does not run in."""
    section = {"enabled": True, "callbacks": ["https://relay.example.org/github/callback"]}
    for identity, status in (({"token_file": "token"}, "RUNNING"), ({"identity": "github"}, "STOPPED")):
        sensors = build_definitions(make_project(relay={**section, **identity})).get_repository_def()
        assert sensors.get_sensor_def("relay_report_sensor").default_status.value == status
        assert sensors.get_sensor_def("relay_pr_sensor").default_status.value == "RUNNING"
