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


def test_several_failed_runs_of_a_job_are_one_message_and_a_good_one_ends_it(
    project: Project, instance: dg.DagsterInstance, chat: Chat
) -> None:
    for status in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.SUCCESS):
        end_run(project, instance, "main", status)
        tick(project, instance)
    assert chat.titles("all") == ["[run] the job main fails", "[run] over: the job main fails"]


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


def test_a_chat_that_is_away_fails_no_tick(project: Project, instance: dg.DagsterInstance, chat: Chat) -> None:
    chat.fails = 1
    end_run(project, instance, "main", dg.DagsterRunStatus.FAILURE)
    assert "did not take post" in tick(project, instance)


def test_without_the_section_there_are_no_sensors(make_project: Callable[..., Project]) -> None:
    names = {sensor.name for sensor in build_definitions(make_project()).sensors or ()}
    assert not {name for name in names if name.startswith("notify")}
