"""`accel-ci dev`: the sensor sees a new upstream commit, the daemon launches the run, and the run finishes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accel_ci.ledger.status import read_status
from accel_ci.model import Build
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.checkout import commit
from accel_ci_tests.fixtures.graphql_server import Server, free_port
from accel_ci_tests.fixtures.project import minimal_config
from accel_ci_tests.fixtures.toy_night import make_toy_night

_START_SENSOR = """mutation ($sensor: SensorSelector!) { startSensor(sensorSelector: $sensor) {
  __typename ... on Sensor { sensorState { status } } } }"""
_SENSOR = """query ($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) { ... on Sensor { sensorState {
  status ticks(limit: 5) { status cursor skipReason error { message } } } } } }"""
_RUNS = '{ runsOrError(filter: {pipelineName: "main"}) { ... on Runs { results { runId status } } } }'


def test_a_new_upstream_commit_is_tested_once(tmp_path: Path) -> None:
    jobs: dict[str, Any] = minimal_config()["jobs"]  # type: ignore[assignment]
    main = {"suites": ["smoke", "unit"], "minimum_interval_minutes": 0, "check_every_seconds": 5}
    night = make_toy_night(tmp_path, jobs={**jobs, "main": main})
    port = free_port()
    server = Server(night.command("dev", "--port", str(port)), port, night.folder, night.environment)
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
        sha = commit(night.folder / "upstream", {"version.txt": "2\n"})
        assert server.ask(_START_SENSOR, sensor=sensor)["startSensor"]["sensorState"]["status"] == "RUNNING"
        runs = server.wait_for(finished_runs)
        assert [run["status"] for run in runs] == ["SUCCESS"], server.log
        server.wait_for(lambda: any(tick["status"] == "SKIPPED" for tick in ticks()))
        assert {tick["status"] for tick in ticks()} <= {"SUCCESS", "SKIPPED", "STARTED"}
        assert any(tick["cursor"] == sha for tick in ticks())
        assert len(server.ask(_RUNS)["runsOrError"]["results"]) == 1, "one run for one commit"
    finally:
        server.stop()
    status = read_status(ManifestStore(night.project.home), Build(f"main-{sha[:12]}", "py3"))
    assert (status.state, status.expected, status.counts["passed"], status.counts["failed"]) == ("2 failed", 7, 5, 2)
