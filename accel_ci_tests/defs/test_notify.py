"""The sensors that tell, on a real instance: failed runs, failing ticks and a nightly that does not start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import InProcessCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    ScheduleInstigatorData,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster_shared.error import SerializableErrorInfo

from accel_ci.config.settings import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.run_tags import TRIGGER_TAG
from accel_ci.errors import AccelCiError
from accel_ci.wheels.checks import CHECK_NAMES
from accel_ci_tests.fixtures.chat_server import Chat


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    home = tmp_path / "dagster"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as temporary:
        yield temporary


@pytest.fixture
def project(make_project: Callable[..., Project], chat: Chat, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose only route leads to a room of the chat, and whose nightly is due every day."""
    monkeypatch.setenv("CHAT", chat.address("all"))
    timed: dict[str, object] = {"cron": "0 2 * * *", "suites": ["smoke", "unit"]}
    asked = {"suites": ["smoke", "unit"]}
    jobs = {"nightly": {**timed, "enabled": True}, "intraday": timed, "main": asked, "pr": asked}
    return make_project(notify={"routes": {"all": {"urls_from": "CHAT"}}, "enabled": True}, jobs=jobs)


def tick(project: Project, instance: dg.DagsterInstance, *, log: str = "1") -> str:
    """Evaluate the sensor; return its answer."""
    repository = build_definitions(project).get_repository_def()
    context = dg.build_sensor_context(instance=instance, instance_ref=instance.get_ref(), repository_def=repository)
    context._log_key = ["a", "notify_sensor", log]
    return str(repository.get_sensor_def("notify_sensor").evaluate_tick(context).skip_message)


def end_run(project: Project, instance: dg.DagsterInstance, job: str, status: dg.DagsterRunStatus) -> str:
    """Add a run of a job that has ended."""
    definition = build_definitions(project).resolve_job_def(job)
    return instance.create_run_for_job(definition, status=status).run_id


def switch_on(instance: dg.DagsterInstance, name: str, kind: InstigatorType, data: Any) -> InstigatorState:
    """Add the state of a sensor or schedule that the daemon runs."""
    target = LoadableTargetOrigin(module_name="accel_ci.definitions")
    origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(InProcessCodeLocationOrigin(target), "__repository__"), name)
    return instance.add_instigator_state(InstigatorState(origin, kind, InstigatorStatus.RUNNING, data))


def add_tick(instance: dg.DagsterInstance, state: InstigatorState, status: TickStatus, at: float) -> None:
    """Add a tick that has ended."""
    error = SerializableErrorInfo("it fails", [], None) if status == TickStatus.FAILURE else None
    origin, kind, selector = state.instigator_origin_id, state.instigator_type, state.selector_id
    instance.create_tick(TickData(origin, state.name, kind, status, at, error=error, selector_id=selector))


@pytest.mark.parametrize("job", ["main", "prune"])
def test_several_failed_runs_of_a_job_are_one_message_and_a_good_one_ends_it(
    project: Project, instance: dg.DagsterInstance, chat: Chat, job: str
) -> None:
    for status in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.SUCCESS):
        end_run(project, instance, job, status)
        tick(project, instance)
    assert chat.titles("all") == [f"[run] the job {job} fails", f"[run] over: the job {job} fails"]


def test_a_janitor_that_cannot_clear_away_is_told_where_there_is_one(
    make_project: Callable[..., Project], project: Project, instance: dg.DagsterInstance, chat: Chat
) -> None:
    execute(instance, "janitor", fails=True)
    tick(project, instance)
    assert chat.posts == [], "the janitor of an earlier configuration"
    sections = project.settings.model_dump(mode="json", exclude_unset=True)
    pool = {"card_environment": "TOY_CARD", "instance": {"start": ["true"], "pause": ["true"]}}
    rented = make_project(notify=sections["notify"], jobs=sections["jobs"], pool=pool)
    tick(rented, instance)
    assert chat.titles("all") == ["[run] the job janitor fails"]


def test_the_failed_run_of_a_pull_request_is_not_told(project: Project, instance: dg.DagsterInstance, chat: Chat) -> None:
    end_run(project, instance, "pr", dg.DagsterRunStatus.FAILURE)
    tick(project, instance)
    assert chat.posts == []


def test_a_sensor_that_fails_five_times_in_a_row_is_told(project: Project, instance: dg.DagsterInstance, chat: Chat) -> None:
    state = switch_on(instance, "upstream_main_sensor", InstigatorType.SENSOR, SensorInstigatorData())
    begin = time.time() - 1000
    for number in range(4):
        add_tick(instance, state, TickStatus.FAILURE, begin + number)
    tick(project, instance)
    assert chat.posts == []
    add_tick(instance, state, TickStatus.FAILURE, begin + 10)
    tick(project, instance)
    add_tick(instance, state, TickStatus.SKIPPED, begin + 20)
    tick(project, instance)
    assert chat.titles("all") == ["[silence] upstream_main_sensor fails", "[silence] over: upstream_main_sensor fails"]


def execute(instance: dg.DagsterInstance, job: str, *, fails: bool) -> dg.ExecuteInProcessResult:
    """Execute a job of the name of one of the project's."""

    @dg.op
    def work() -> None:
        if fails:
            raise dg.Failure("it fails")

    graph = dg.GraphDefinition(job, node_defs=[work])
    return graph.to_job().execute_in_process(instance=instance, raise_on_error=False)


@pytest.mark.parametrize("job", ["main", "prune"])
def test_the_sensor_of_failed_runs_tells_at_once_once(
    project: Project, instance: dg.DagsterInstance, chat: Chat, job: str
) -> None:
    sensor = build_definitions(project).get_repository_def().get_sensor_def("notify_run_failure_sensor")

    def fail() -> list[str]:
        ended = execute(instance, job, fails=True)
        context = dg.build_run_status_sensor_context(
            sensor.name, ended.get_run_failure_event(), instance, ended.dagster_run
        ).for_run_failure()
        sensor(context)
        return chat.titles("all")

    assert fail() == [f"[run] the job {job} fails"]
    assert fail() == [f"[run] the job {job} fails"], "further failures are the same trouble"
    execute(instance, job, fails=False)
    tick(project, instance)
    assert chat.titles("all")[1:] == [f"[run] over: the job {job} fails"]
    assert fail()[2:] == [f"[run] again: the job {job} fails"]


def materialize(instance: dg.DagsterInstance, key: dg.AssetCheckKey, *, passes: bool, trigger: str = "nightly") -> None:
    """Materialize an asset with a check of it; a check that fails does not make the run fail."""
    spec = dg.AssetCheckSpec(key.name, asset=key.asset_key)

    @dg.asset(key=key.asset_key, check_specs=[spec])
    def made() -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster takes no others
        return dg.MaterializeResult(check_results=[dg.AssetCheckResult(passed=passes, check_name=key.name)])

    assert dg.materialize([made], instance=instance, tags={TRIGGER_TAG: trigger}).success


def test_the_checks_of_an_asset_that_fail_are_one_trouble_with_an_end(
    project: Project, instance: dg.DagsterInstance, chat: Chat
) -> None:
    first, second = (dg.AssetCheckKey(dg.AssetKey("wheel"), name) for name in CHECK_NAMES[:2])
    for key, passes in ((first, False), (first, False), (second, False), (first, True), (second, True)):
        materialize(instance, key, passes=passes)
        tick(project, instance)
    assert chat.titles("all") == ["[run] checks of wheel fail", "[run] over: checks of wheel fail"]
    assert first.name in chat.posts[0][1]["message"]


def test_what_is_told_otherwise_is_no_failing_check(project: Project, instance: dg.DagsterInstance, chat: Chat) -> None:
    materialize(instance, dg.AssetCheckKey(dg.AssetKey("ledger"), "all_passed"), passes=False)
    materialize(instance, dg.AssetCheckKey(dg.AssetKey("wheel"), CHECK_NAMES[0]), passes=False, trigger="pr")
    tick(project, instance)
    assert chat.posts == [], "failures of tests are incidents, and a pull request is its author's"


def test_a_nightly_that_did_not_start_is_told(project: Project, instance: dg.DagsterInstance, chat: Chat) -> None:
    begin = datetime.now(timezone.utc) - timedelta(days=2)
    data = ScheduleInstigatorData("0 2 * * *", begin.timestamp())
    switch_on(instance, "nightly_schedule", InstigatorType.SCHEDULE, data)
    tick(project, instance)
    assert chat.titles("all") == ["[silence] the nightly did not start"]


def test_a_nightly_that_was_switched_on_just_now_is_no_silence(
    project: Project, instance: dg.DagsterInstance, chat: Chat
) -> None:
    data = ScheduleInstigatorData("0 2 * * *", datetime.now(timezone.utc).timestamp())
    switch_on(instance, "nightly_schedule", InstigatorType.SCHEDULE, data)
    tick(project, instance)
    assert chat.posts == []


def test_a_preview_sends_nothing(project: Project, instance: dg.DagsterInstance, chat: Chat) -> None:
    end_run(project, instance, "main", dg.DagsterRunStatus.FAILURE)
    assert "the job main fails" in tick(project, instance, log="preview")
    assert chat.posts == []


def test_a_message_that_nobody_takes_fails_the_tick_and_is_sent_later(
    project: Project, instance: dg.DagsterInstance, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_run(project, instance, "main", dg.DagsterRunStatus.FAILURE)
    monkeypatch.delenv("CHAT")
    with pytest.raises(AccelCiError, match="nobody can be told: the route all has no address"):
        tick(project, instance)
    monkeypatch.setenv("CHAT", chat.address("all"))
    chat.fails = 1
    with pytest.raises(AccelCiError, match="1 of 1 addresses did not take post"):
        tick(project, instance)
    assert "nothing has changed" in tick(project, instance), "it waits a minute"


def test_without_the_section_there_are_no_sensors(make_project: Callable[..., Project]) -> None:
    names = {sensor.name for sensor in build_definitions(make_project()).sensors or ()}
    assert not {name for name in names if name.startswith("notify")}
