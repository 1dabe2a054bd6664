"""Two backends on one deployment: one webserver, one daemon and one instance, and a code location for each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from accel_ci.ledger.status import read_status
from accel_ci.model import Build
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.checkout import ROOT
from accel_ci_tests.fixtures.graphql_server import Server, free_port
from accel_ci_tests.fixtures.project import run_command_line
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night

EMU, NPU = "torch-emu", "torch-npu"
BUILD = Build("manual-same", "py3")
_LAUNCH = """mutation ($asked: ExecutionParams!) { launchRun(executionParams: $asked) {
  __typename ... on LaunchRunSuccess { run { runId } } } }"""
_RUNS = """query ($tags: [ExecutionTag!]) { runsOrError(filter: {tags: $tags}) { ... on Runs { results {
  runId status jobName tags { key value } repositoryOrigin { repositoryLocationName } } } } }"""
_LEDGER = """query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  partitionKeysByDimension { name partitionKeys } assetMaterializations { runId partition
  metadataEntries { __typename label ... on PathMetadataEntry { path } } } } } }"""
_SENSOR = """query ($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) { ... on Sensor { sensorState {
  ticks(limit: 100) { status originRunIds error { message } } } } } }"""


@dataclass(frozen=True)
class Deployment:
    """The backends by their locations, and the server of their instance."""

    nights: dict[str, ToyNight]
    server: Server

    def start(self, location: str) -> str:
        """Start the builds of a revision that has the same name in each location; return the run that does it."""
        config = {"ops": {"start_builds": {"config": {"trigger": "manual", "name": "same"}}}}
        job = {"repositoryLocationName": location, "repositoryName": "__repository__", "jobName": "start"}
        answer = self.server.ask(_LAUNCH, asked={"selector": job, "runConfigData": config})["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def runs(self, location: str) -> dict[str, dict[str, Any]]:
        """Return the runs that carry the tag of a location, by their jobs."""
        found = self.server.ask(_RUNS, tags=[{"key": "accel_ci/location", "value": location}])["runsOrError"]["results"]
        assert {run["repositoryOrigin"]["repositoryLocationName"] for run in found} <= {location}
        return {run["jobName"]: run for run in found}

    def ledger(self, location: str) -> dict[str, Any]:
        """Return the asset node of a location's ledger."""
        node: dict[str, Any] = self.server.ask(_LEDGER, key={"path": [location, "ledger"]})["assetNodeOrError"]
        return node

    def revisions(self, location: str) -> list[str]:
        """Return the revisions that a location's ledger has as partitions."""
        [keys] = [
            one["partitionKeys"] for one in self.ledger(location)["partitionKeysByDimension"] if one["name"] == "revision"
        ]
        return list(keys)

    def reported(self, location: str) -> set[str]:
        """Return the failed runs that the sensor for stopped builds of a location has been given."""
        sensor = {
            "repositoryName": "__repository__",
            "repositoryLocationName": location,
            "sensorName": "stopped_build_sensor",
        }
        ticks = self.server.ask(_SENSOR, sensor=sensor)["sensorOrError"]["sensorState"]["ticks"]
        assert not [tick["error"] for tick in ticks if tick["error"]]
        return {run for tick in ticks for run in tick["originRunIds"]}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Make two projects, add each with the command, and serve both. Runs of one of them fail where a test does."""
    folder = tmp_path_factory.mktemp("deployment")
    nights = {
        EMU: make_toy_night(folder / EMU, location=EMU),
        NPU: make_toy_night(folder / NPU, location=NPU, fail_run_on=["failed"]),
    }
    for location in nights:
        added = run_command_line(folder, "init", "--location", location)
        assert added.returncode == 0, added.stderr
    home = folder / "dagster"
    home.mkdir()
    text = (ROOT / "accel_ci" / "dagster.yaml").read_text()
    limits = "max_concurrent_runs: 4\n    tag_concurrency_limits:\n      - key: accel_ci/location\n        value:\n"
    limits += "          applyLimitPerUniqueValue: true\n        limit: 1\n"
    before = "max_concurrent_runs: 1\n    tag_concurrency_limits:\n"
    assert text.count(before) == 1
    (home / "dagster.yaml").write_text(text.replace(before, limits))
    links = " ".join(str(night.folder / "links") for night in nights.values())
    environment = {
        **nights[EMU].environment,
        "DAGSTER_HOME": str(home),
        "PIP_FIND_LINKS": f"{links} {os.environ.get('PIP_FIND_LINKS', '')}",
    }
    port = free_port()
    command = [sys.executable, "-m", "dagster", "dev", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)]
    server = Server(command, port, folder, environment)
    yield Deployment(nights, server)
    server.stop()


def test_a_revision_of_the_same_name_is_built_in_each_location_by_itself(deployment: Deployment) -> None:
    def built(location: str) -> dict[str, Any] | None:
        run = deployment.runs(location).get("nightly_integration")
        return run if run and run["status"] in ("SUCCESS", "FAILURE", "CANCELED") else None

    deployment.start(EMU)
    deployment.server.wait_for(lambda: deployment.runs(EMU).get("nightly_integration"))
    assert deployment.revisions(EMU) == [BUILD.revision]
    assert (deployment.revisions(NPU), deployment.runs(NPU)) == ([], {})
    deployment.start(NPU)
    emu, npu = (deployment.server.wait_for(partial(built, location)) for location in (EMU, NPU))
    assert (emu["status"], npu["status"]) == ("SUCCESS", "FAILURE"), deployment.server.log[-5000:]
    assert deployment.revisions(NPU) == [BUILD.revision]
    for location, run in ((EMU, emu), (NPU, npu)):
        night = deployment.nights[location]
        [event] = deployment.ledger(location)["assetMaterializations"]
        assert event["runId"] == run["runId"]
        [manifest] = [entry for entry in event["metadataEntries"] if entry["label"] == "manifest"]
        assert Path(manifest["path"]).is_relative_to(night.project.home)
        tags = {tag["key"]: tag["value"] for tag in run["tags"]}
        assert tags["accel_ci/build"] == f"{location}/{BUILD.name}/integration"
        status = read_status(ManifestStore(night.project.home), BUILD)
        assert (status.expected, status.counts["passed"], status.counts["failed"]) == (7, 5, 2)
        assert (night.project.home / "hud" / "index.html").is_file()
    deployment.server.wait_for(lambda: deployment.reported(NPU))
    assert (deployment.reported(NPU), deployment.reported(EMU)) == ({npu["runId"]}, set())


def test_assets_and_instigators_are_of_one_location_each(deployment: Deployment) -> None:
    nodes = deployment.server.ask("{ assetNodes { assetKey { path } repository { location { name } } } }")["assetNodes"]
    places = {(node["assetKey"]["path"][0], node["repository"]["location"]["name"]) for node in nodes}
    assert places == {(EMU, EMU), (NPU, NPU)}
    keys = {
        location: {n["assetKey"]["path"][1] for n in nodes if n["assetKey"]["path"][0] == location}
        for location in (EMU, NPU)
    }
    assert keys[EMU] | {"quality_gate"} == keys[NPU]
