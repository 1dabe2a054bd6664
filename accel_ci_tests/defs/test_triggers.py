"""Schedules and sensors against real git repositories and an instance of their own; no run is started here."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.errors import ScheduleExecutionError
from sqlalchemy import event
from sqlalchemy.engine import Engine

from accel_ci.config.settings import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.triggers import start_revision
from accel_ci.errors import AccelCiError
from accel_ci.model import Revision
from accel_ci.quality.judgement import judge_new_builds
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.finished_nights import BROKEN, PASSES, RACE, TODAY, fails, write_night, write_reruns
from accel_ci_tests.fixtures.project import minimal_config

NIGHT = datetime(2026, 11, 27, 2, tzinfo=timezone.utc)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    home = tmp_path / "dagster"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as temporary:
        yield temporary


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    folder = tmp_path / "upstream"
    folder.mkdir()
    git(folder, "init", "--quiet")
    commit(folder, {"version.txt": "1"})
    return folder


@pytest.fixture
def project(repository: Path, upstream: Path, make_project: Callable[..., Project]) -> Project:
    variants = [{**minimal_config()["variants"][0], "name": name} for name in ("py3", "py4")]  # type: ignore[index]
    jobs: dict[str, Any] = {**minimal_config()["jobs"]}  # type: ignore[dict-item]
    jobs["main"] = {**jobs["main"], "variants": ["py4"]}
    return make_project(upstream={"repository": upstream.as_uri(), "ref": "refs/heads/main"}, variants=variants, jobs=jobs)


def tick_schedule(project: Project, name: str, instance: dg.DagsterInstance, at: datetime = NIGHT) -> Any:
    repository = build_definitions(project).get_repository_def()
    with dg.build_schedule_context(
        instance=instance, instance_ref=instance.get_ref(), scheduled_execution_time=at, repository_def=repository
    ) as context:
        return repository.get_schedule_def(name).evaluate_tick(context)


def tick_sensor(
    project: Project, instance: dg.DagsterInstance, cursor: str | None = None, name: str = "upstream_main_sensor"
) -> Any:
    repository = build_definitions(project).get_repository_def()
    context = dg.build_sensor_context(
        instance=instance, instance_ref=instance.get_ref(), cursor=cursor, repository_def=repository
    )
    return repository.get_sensor_def(name).evaluate_tick(context)


def start_run(instance: dg.DagsterInstance, project: Project, job_name: str, status: dg.DagsterRunStatus) -> None:
    job = build_definitions(project).resolve_job_def(job_name)
    instance.create_run_for_job(job, status=status)


def test_the_nightly_asks_for_every_variant_of_one_revision(
    project: Project, upstream: Path, instance: dg.DagsterInstance
) -> None:
    requests = tick_schedule(project, "nightly_schedule", instance).run_requests
    assert [request.partition_key for request in requests] == ["nightly-20261127|py3", "nightly-20261127|py4"]
    assert [request.tags["accel_ci/build"] for request in requests] == [
        "nightly-20261127~py3/integration", "nightly-20261127~py4/integration",
    ]  # fmt: skip
    revision = ManifestStore(project.home).revision("nightly-20261127")
    assert revision is not None
    assert revision.upstream.sha == git(upstream, "rev-parse", "HEAD")
    assert instance.has_dynamic_partition("revision", "nightly-20261127")
    event = instance.get_latest_materialization_event(dg.AssetKey("revision"))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.partition == "nightly-20261127"


def test_a_key_that_another_trigger_has_just_taken_for_other_sources_gets_a_number(
    project: Project, repository: Path, instance: dg.DagsterInstance
) -> None:
    class Busy(ManifestStore):
        """A store in which another trigger takes a key just after it was looked for, and the sources move on."""

        def revision(self, key: str) -> Revision | None:
            found = super().revision(key)
            if not others:
                commit(repository, {"backend/second.txt": ""})
                others.append(start_revision(instance, Workspace(project), "manual", slug="a"))
                commit(repository, {"backend/third.txt": ""})
            return found

    others: list[Revision] = []
    workspace = Workspace(project)
    vars(workspace)["manifests"] = Busy(project.home)
    revision = start_revision(instance, workspace, "manual", slug="a")
    assert (others[0].key, revision.key) == ("manual-a", "manual-a.2")
    assert revision.backend.sha == git(repository, "rev-parse", "HEAD")
    assert workspace.manifests.revision("manual-a") == others[0]
    assert workspace.manifests.revision("manual-a.2") == revision
    assert instance.has_dynamic_partition("revision", "manual-a.2")


def test_a_tick_that_is_repeated_asks_for_the_same_runs(project: Project, instance: dg.DagsterInstance) -> None:
    keys = [[r.run_key for r in tick_schedule(project, "nightly_schedule", instance).run_requests] for _ in range(2)]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 2


def test_a_backend_that_cannot_be_read_fails_the_tick_with_its_reason(
    repository: Path, project: Project, instance: dg.DagsterInstance
) -> None:
    repository.rename(repository.with_name("moved"))
    with pytest.raises(ScheduleExecutionError) as raised:
        tick_schedule(project, "nightly_schedule", instance)
    assert "the revision cannot be resolved: repository: there is no such folder" in str(raised.value.__cause__)


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED])
def test_intraday_is_skipped_while_one_runs(
    project: Project, instance: dg.DagsterInstance, status: dg.DagsterRunStatus
) -> None:
    start_run(instance, project, "intraday", status)
    tick = tick_schedule(project, "intraday_schedule", instance)
    assert not tick.run_requests
    assert "has not finished" in tick.skip_message


@pytest.mark.parametrize("job", ["nightly_integration", "intraday"])
def test_intraday_runs_when_the_last_one_is_done(project: Project, instance: dg.DagsterInstance, job: str) -> None:
    start_run(instance, project, job, dg.DagsterRunStatus.SUCCESS if job == "intraday" else dg.DagsterRunStatus.STARTED)
    requests = tick_schedule(project, "intraday_schedule", instance).run_requests
    assert [request.partition_key for request in requests] == ["intraday-20261127T02|py3", "intraday-20261127T02|py4"]


def test_the_source_build_takes_the_nights_revision_though_upstream_has_moved_on(
    make_project: Callable[..., Project], project: Project, upstream: Path, instance: dg.DagsterInstance
) -> None:
    sections = project.settings.model_dump(mode="json", exclude_none=True)
    jobs = {**sections["jobs"], "nightly_rbe": {"cron": "30 2 * * *", "variants": ["py4"]}}
    both = make_project(upstream=sections["upstream"], variants=sections["variants"], jobs=jobs, rbe={"targets": ["//..."]})
    half_past = NIGHT.replace(minute=30)
    first = tick_schedule(both, "nightly_rbe_schedule", instance, half_past)
    assert [request.partition_key for request in first.run_requests] == ["nightly-20261127|py4"], "it may come first"
    tick_schedule(both, "nightly_schedule", instance)
    commit(upstream, {"version.txt": "2"})
    [request] = tick_schedule(both, "nightly_rbe_schedule", instance, half_past).run_requests
    assert (request.partition_key, request.job_name) == ("nightly-20261127|py4", "nightly_rbe")


def test_a_new_commit_starts_one_run_and_moves_the_cursor(
    project: Project, upstream: Path, instance: dg.DagsterInstance
) -> None:
    sha = git(upstream, "rev-parse", "HEAD")
    tick = tick_sensor(project, instance)
    assert [request.partition_key for request in tick.run_requests] == [f"main-{sha[:12]}|py4"]
    assert [request.job_name for request in tick.run_requests] == ["main"]
    assert tick.cursor == sha
    again = tick_sensor(project, instance, cursor=sha)
    assert not again.run_requests
    assert "already tested" in again.skip_message


def test_commits_within_the_interval_wait_and_the_newest_is_tested(
    project: Project, upstream: Path, instance: dg.DagsterInstance
) -> None:
    start_run(instance, project, "main", dg.DagsterRunStatus.SUCCESS)
    tick = tick_sensor(project, instance, cursor="0" * 40)
    assert not tick.run_requests
    assert "waits" in tick.skip_message
    assert tick.cursor in (None, "0" * 40)


def test_an_upstream_that_does_not_answer_fails_the_tick_with_its_reason(
    project: Project, upstream: Path, instance: dg.DagsterInstance
) -> None:
    upstream.rename(upstream.with_name("away"))
    with pytest.raises(AccelCiError, match="upstream cannot be asked: git ls-remote failed"):
        tick_sensor(project, instance, cursor="0" * 40)


def test_failures_of_the_newest_build_run_again_once(project: Project, instance: dg.DagsterInstance) -> None:
    workspace = Workspace(project)

    def tick(cursor: str | None) -> Any:
        return tick_sensor(project, instance, cursor, "confirm_sensor")

    assert tick(None).skip_message == "; ".join(
        f"{variant}: no build of nightly, intraday or main has finished yet" for variant in ("py3", "py4")
    )
    for night in range(3):
        write_night(workspace, night, {}, backend=night)
    build = write_night(workspace, 3, {RACE: fails()}, backend=3)
    assert "nobody has judged it" in tick(None).skip_message
    judge_new_builds(workspace, TODAY)
    first = tick(None)
    [request] = first.run_requests
    assert (request.job_name, request.partition_key) == ("confirm", f"confirm-{build.revision}|py3")
    assert request.tags["accel_ci/build"] == f"confirm-{build.name}/integration"
    revision = workspace.manifests.revision(f"confirm-{build.revision}")
    assert revision is not None
    assert revision.confirms == build.revision
    assert instance.has_dynamic_partition("revision", revision.key)
    again = tick(first.cursor)
    assert not again.run_requests
    assert f"py3: confirm-{build.name} was asked for, and has not finished yet" in again.skip_message
    [repeated] = tick(None).run_requests
    assert repeated.run_key == request.run_key, "Dagster starts no second run for it, though the cursor is lost"
    write_reruns(workspace, build, {RACE: PASSES})
    judge_new_builds(workspace, TODAY)
    done = tick(first.cursor)
    assert not done.run_requests
    assert f"py3: nothing to confirm in {build.name}: 1 with a certain cause" in done.skip_message


def test_what_is_in_doubt_after_the_first_time_runs_a_second_time(project: Project, instance: dg.DagsterInstance) -> None:
    workspace = Workspace(project)
    for night in range(3):
        write_night(workspace, night, {}, backend=night)
    build = write_night(workspace, 3, {RACE: fails(), **dict.fromkeys(BROKEN, fails())}, backend=3, upstream=3)
    write_reruns(workspace, build, {RACE: PASSES, BROKEN[0]: [*PASSES, *PASSES]})
    judge_new_builds(workspace, TODAY)
    [request] = tick_sensor(project, instance, None, "confirm_sensor").run_requests
    assert request.partition_key == f"confirm-2-{build.revision}|py3"


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"trigger": "confirm"}, "the failures of which build are to run again? Set 'build'"),
        ({"trigger": "confirm", "build": "nightly-2020"}, "nothing has been built yet"),
        ({"trigger": "pr"}, "a pull request needs its number: set 'pull_request'"),
        ({"trigger": "manual", "suites": ["smoke"]}, "smoke: no suite of the stage 'device'"),
        ({"trigger": "nightly", "revision": "nightly-2020"}, "there is no revision 'nightly-2020'"),
        ({"trigger": "manual", "backend_ref": "refs/heads/none"}, "refs/heads/none"),
        ({"trigger": "main", "variants": ["py3"]}, "the job main has none of the variants py3"),
    ],
)
def test_a_start_that_cannot_be_is_refused_with_its_reason(
    project: Project, instance: dg.DagsterInstance, chosen: dict[str, Any], message: str
) -> None:
    job = build_definitions(project).resolve_job_def("start")
    config = {"ops": {"start_builds": {"config": chosen}}}
    result = job.execute_in_process(run_config=config, instance=instance, raise_on_error=False)
    [failure] = result.get_step_failure_events()
    cause = failure.step_failure_data.user_failure_data
    assert cause is not None
    assert message in str(cause.description)
    assert len(instance.get_runs()) == 1, "no build is queued"


def test_the_launchpad_offers_the_variants_of_its_own_project(
    project: Project, instance: dg.DagsterInstance, make_project: Callable[..., Project]
) -> None:
    other = make_project(variants=[{**minimal_config()["variants"][0], "name": "other"}])  # type: ignore[index]
    for one, variant in ((other, "other"), (project, "py3")):
        config = {"ops": {"start_builds": {"config": {"trigger": "nightly", "variants": [variant], "revision": "none"}}}}
        job = build_definitions(one).resolve_job_def("start")
        result = job.execute_in_process(run_config=config, instance=instance, raise_on_error=False)
        [failure] = result.get_step_failure_events()
        assert "there is no revision 'none'" in str(failure.step_failure_data.user_failure_data)


def test_suites_that_a_person_chooses_make_another_revision(project: Project, instance: dg.DagsterInstance) -> None:
    workspace = Workspace(project)
    whole = start_revision(instance, workspace, "nightly", now=NIGHT)
    part = start_revision(instance, workspace, "nightly", now=NIGHT, suites=["unit"])
    assert (whole.key, part.key, part.suites) == ("nightly-20261127", "nightly-20261127.2", ("unit",))
    assert start_revision(instance, workspace, "nightly", now=NIGHT, suites=["unit"]).key == part.key


def test_a_revision_that_another_process_starts_at_the_same_moment_is_taken_up(
    project: Project, instance: dg.DagsterInstance
) -> None:
    others: list[int] = []

    def insert_first(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        """Insert the same partition by another connection, after Dagster has looked and before it inserts."""
        if statement.startswith("INSERT INTO dynamic_partitions") and not others:
            [database] = Path(instance.root_directory).rglob("index.db")
            with closing(sqlite3.connect(database)) as other, other:
                others.append(other.execute(statement, parameters).rowcount)

    event.listen(Engine, "before_cursor_execute", insert_first)
    try:
        revision = start_revision(instance, Workspace(project), "nightly", now=NIGHT)
    finally:
        event.remove(Engine, "before_cursor_execute", insert_first)
    assert others == [1]
    assert instance.get_dynamic_partitions("revision") == [revision.key]
