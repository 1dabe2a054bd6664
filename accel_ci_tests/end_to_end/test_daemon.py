"""`accel-ci dev`: the sensor sees a new upstream commit, the daemon launches the run, and the run finishes."""

from __future__ import annotations

import sys
from typing import Any

from accel_ci.model import Build
from accel_ci_tests.fixtures.bench import Bench
from accel_ci_tests.fixtures.checkout import commit
from accel_ci_tests.fixtures.graphql_server import Server, free_port

_START_SENSOR = """mutation ($sensor: SensorSelector!) { startSensor(sensorSelector: $sensor) {
  __typename ... on Sensor { sensorState { status } } } }"""
_SENSOR = """query ($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) { ... on Sensor { sensorState {
  status ticks(limit: 5) { status cursor skipReason error { message } } } } } }"""
_RUNS = '{ runsOrError(filter: {pipelineName: "main"}) { ... on Runs { results { runId status } } } }'


def test_a_new_upstream_commit_is_tested_once(bench: Bench, faulty_nightly: Build) -> None:
    bench.configure(
        jobs__main__minimum_interval_minutes=0,
        jobs__main__check_every_seconds=5,
        suites__smoke__scope={"include": ["*linear*"]},
    )
    port = free_port()
    command = [sys.executable, "-m", "accel_ci.cli", "--config", str(bench.folder / "accel_ci.yaml"), "dev"]
    server = Server([*command, "--port", str(port)], port, bench.folder, bench.environment)
    sensor = {
        "repositoryName": "__repository__",
        "repositoryLocationName": "accel_ci",
        "sensorName": "upstream_main_sensor",
    }

    def finished_runs() -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = server.ask(_RUNS)["runsOrError"]["results"]
        return runs if runs and all(run["status"] in ("SUCCESS", "FAILURE") for run in runs) else []

    def ticks() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = server.ask(_SENSOR, sensor=sensor)["sensorOrError"]["sensorState"]["ticks"]
        return found

    try:
        sha = commit(bench.folder / "upstream", {"version.txt": "2\n"})
        assert server.ask(_START_SENSOR, sensor=sensor)["startSensor"]["sensorState"]["status"] == "RUNNING"
        runs = server.wait_for(finished_runs)
        assert [run["status"] for run in runs] == ["SUCCESS"], server.log
        server.wait_for(lambda: any(tick["status"] == "SKIPPED" for tick in ticks()))
        assert {tick["status"] for tick in ticks()} <= {"SUCCESS", "SKIPPED", "STARTED"}
        assert any(tick["cursor"] == sha for tick in ticks())
        assert len(server.ask(_RUNS)["runsOrError"]["results"]) == 1, "one run for one commit"
    finally:
        server.stop()
        bench.configure()
    build = Build(f"main-{sha[:12]}", faulty_nightly.variant)
    status = bench.status(build)
    assert status["verdicts"]["failed"] == 0
    assert status["verdicts"]["passed"] == status["verdicts"]["expected"] > 0
