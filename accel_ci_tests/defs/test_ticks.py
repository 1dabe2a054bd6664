"""Ticks that fail, by the daemon's own evaluation: what Dagster keeps of them, and who is told after several in a row."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.instance_for_test import instance_for_test
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.scheduler.instigation import InstigatorTick, InstigatorType, SensorInstigatorData, TickStatus
from dagster._core.test_utils import create_test_daemon_workspace_context
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.sensor import execute_sensor_iteration
from dagster._utils.error import serializable_error_info_from_exc_info

from accel_ci.config.settings import Project
from accel_ci.defs.ticks import fail_if_all_failed, failing_tick
from accel_ci.errors import AccelCiError
from accel_ci.github.client import TOKEN as VARIABLE
from accel_ci.redaction import OF_THIS_PROCESS
from accel_ci_tests.fixtures.chat_server import Chat
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.github_server import TOKEN, GitHubServer, github_server
from accel_ci_tests.fixtures.project import minimal_config

DEFINITIONS = """
from pathlib import Path

from accel_ci.config.loading import load_project
from accel_ci.defs.assembly import build_definitions

defs = build_definitions(load_project(Path({config!r})))
"""


class Daemon:
    """The daemon's evaluation of sensors: each round, the interval of each is over."""

    def __init__(self, context: Any, instance: dg.DagsterInstance) -> None:
        self._context, self.instance = context, instance

    def round(self) -> None:
        for state in self.instance.all_instigator_state(instigator_type=InstigatorType.SENSOR):
            data = state.instigator_data
            assert isinstance(data, SensorInstigatorData)
            self.instance.update_instigator_state(
                state.with_data(data._replace(last_tick_timestamp=None, last_tick_start_timestamp=None))
            )
        list(execute_sensor_iteration(self._context, logging.getLogger(__name__), None, None))

    def ticks(self, name: str) -> list[InstigatorTick]:
        """The ticks of a sensor, the newest first."""
        [state] = [one for one in self.instance.all_instigator_state() if one.name == name]
        return list(self.instance.get_ticks(state.instigator_origin_id, state.selector_id))


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHubServer]:
    monkeypatch.setenv(VARIABLE, TOKEN)
    with github_server() as server:
        yield server


@pytest.fixture
def project(
    make_project: Callable[..., Project],
    tmp_path: Path,
    repository: Path,
    github: GitHubServer,
    chat: Chat,
    monkeypatch: pytest.MonkeyPatch,
) -> Project:
    """A project that watches upstream and pull requests, and tells a chat."""
    monkeypatch.setenv("CHAT", chat.address("all"))
    git(tmp_path, "init", "--quiet", "upstream")
    commit(tmp_path / "upstream", {"version.txt": "1"})
    jobs: dict[str, Any] = minimal_config()["jobs"]  # type: ignore[assignment]
    return make_project(
        jobs={**jobs, "main": {"suites": ["smoke", "unit"], "enabled": True}},
        github={"repository": github.pulls.repository, "api": github.url},
        pull_requests={"enabled": True},
        notify={"enabled": True, "routes": {"all": {"urls_from": "CHAT"}}, "silence": {"failed_ticks": 2}},
    )


@pytest.fixture
def daemon(project: Project, tmp_path: Path) -> Iterator[Daemon]:
    file = tmp_path / "its_definitions.py"
    file.write_text(DEFINITIONS.format(config=str(project.config_path)))
    origin = LoadableTargetOrigin(executable_path=sys.executable, python_file=str(file), attribute="defs")
    target = InProcessWorkspaceLoadTarget(InProcessCodeLocationOrigin(origin, location_name="accel_ci"))
    queue = {"run_coordinator": {"module": "dagster.core.run_coordinator", "class": "QueuedRunCoordinator"}}
    with instance_for_test(overrides=queue) as instance, create_test_daemon_workspace_context(target, instance) as context:
        yield Daemon(context, instance)


def test_looks_that_fail_several_times_in_a_row_are_told_and_so_is_their_end(
    daemon: Daemon, tmp_path: Path, github: GitHubServer, chat: Chat
) -> None:
    daemon.round()
    cursor = daemon.ticks("upstream_main_sensor")[0].cursor
    (tmp_path / "upstream").rename(tmp_path / "away")
    github.pulls.fault = lambda method, path: 401
    for _ in range(3):
        daemon.round()
    for name, why in (
        ("upstream_main_sensor", "upstream cannot be asked: upstream: there is no such folder"),
        ("pull_requests_sensor", "the pull requests cannot be listed"),
    ):
        ticks = daemon.ticks(name)
        assert [tick.status for tick in ticks[:3]] == [TickStatus.FAILURE] * 3
        assert why in str(ticks[0].error)
        assert TOKEN not in str(ticks)
    told = json.dumps(chat.posts)
    assert "upstream_main_sensor fails" in told
    assert "pull_requests_sensor fails" in told
    (tmp_path / "away").rename(tmp_path / "upstream")
    github.pulls.fault = lambda method, path: None
    for _ in range(2):
        daemon.round()
    healthy = daemon.ticks("upstream_main_sensor")
    assert TickStatus.FAILURE not in {tick.status for tick in healthy[:2]}
    assert healthy[0].cursor == cursor is not None, "what was seen before is not forgotten"
    told = json.dumps(chat.posts)
    assert "over: upstream_main_sensor fails" in told
    assert "over: pull_requests_sensor fails" in told


def test_the_error_of_a_tick_holds_no_secret_not_even_as_its_cause() -> None:
    OF_THIS_PROCESS.learn(["hunter2-hunter2"])
    with pytest.raises(AccelCiError) as raised, failing_tick("the look"):
        raise AccelCiError("no answer to hunter2-hunter2") from ValueError("hunter2-hunter2")
    kept = serializable_error_info_from_exc_info((raised.type, raised.value, raised.tb))
    assert "the look: no answer to" in str(kept)
    assert "hunter2" not in f"{kept}{kept.cause}{kept.context}"


@pytest.mark.parametrize(("errors", "tried"), [([], 0), ([], 2), (["7: gone"], 2)])
def test_one_failure_among_others_is_none_of_the_tick(errors: list[str], tried: int) -> None:
    fail_if_all_failed("nothing", errors, tried)


def test_only_failures_are_one_of_the_tick() -> None:
    with pytest.raises(AccelCiError, match="nothing can be built: 7: gone; 8: gone"):
        fail_if_all_failed("nothing can be built", ["7: gone", "8: gone"], 2)
