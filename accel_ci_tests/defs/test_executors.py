"""Steps with processes of their own: a nightly that the queue starts, whose run keeps the build for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accel_ci.ledger.status import read_status
from accel_ci.pipelines import INTEGRATION
from accel_ci.resumption import has_ended, stages_left
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.graphql_server import Server, free_port
from accel_ci_tests.fixtures.toy_night import make_toy_night

_START = """mutation ($selector: JobOrPipelineSelector!, $config: RunConfigData) {
  launchPipelineExecution(executionParams: {selector: $selector, runConfigData: $config}) { __typename } }"""
_RUNS = """{ runsOrError(filter: {pipelineName: "nightly_integration"}) { ... on Runs { results {
  runId status stats { ... on RunStatsSnapshot { stepsSucceeded } } } } } }"""


def test_a_nightly_whose_steps_have_processes_of_their_own(tmp_path: Path) -> None:
    night = make_toy_night(tmp_path, executor={"kind": "multiprocess", "max_concurrent": 2})
    port = free_port()
    server = Server(night.command("dev", "--port", str(port)), port, night.folder, night.environment)
    selector = {"repositoryName": "__repository__", "repositoryLocationName": "accel_ci", "pipelineName": "start"}
    config = {"ops": {"start_builds": {"config": {"trigger": "nightly"}}}}

    def finished_runs() -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = server.ask(_RUNS)["runsOrError"]["results"]
        return runs if runs and all(run["status"] in ("SUCCESS", "FAILURE") for run in runs) else []

    try:
        server.ask(_START, selector=selector, config=config)
        [run] = server.wait_for(finished_runs)
        assert run["status"] == "SUCCESS", server.log
        assert run["stats"]["stepsSucceeded"] >= len(INTEGRATION.stages) + 1
    finally:
        server.stop()
    workspace = Workspace(night.project)
    [build] = workspace.manifests.list_builds()
    status = read_status(workspace.manifests, build)
    assert (status.state, status.expected, status.counts["passed"], status.counts["failed"]) == ("2 failed", 7, 5, 2)
    record = workspace.manifests.last_run(INTEGRATION, build)
    assert record is not None
    assert record.run == run["runId"]
    assert has_ended(record)
    assert record.began == (*INTEGRATION.stages, "ledger")
    assert stages_left(workspace, INTEGRATION, build) == ()
