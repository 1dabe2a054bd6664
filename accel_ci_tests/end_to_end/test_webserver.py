"""The Dagster UI on the data folder of a finished nightly, through GraphQL as in the browser."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accel_ci.model import Build
from accel_ci.pipelines import PIPELINES
from accel_ci.wheels.checks import CHECK_NAMES
from accel_ci_tests.fixtures.bench import Bench
from accel_ci_tests.fixtures.graphql_server import Server, free_port


@pytest.fixture(scope="module")
def graphql(bench: Bench, faulty_nightly: Build) -> Iterator[Callable[..., Any]]:
    """Send a query to a webserver on the bench's data."""
    port = free_port()
    environment = bench.environment | {
        "DAGSTER_HOME": str(bench.project.home / "dagster"),
        "ACCEL_CI_CONFIG": str(bench.folder / "accel_ci.yaml"),
    }
    command = [sys.executable, "-m", "dagster_webserver", "-m", "accel_ci.definitions", "-h", "127.0.0.1", "-p", str(port)]
    server = Server(command, port, bench.folder, environment)
    yield server.ask
    server.stop()


def test_lineage_groups_kinds_owners_and_descriptions(graphql: Callable[..., Any]) -> None:
    nodes = graphql(
        """{ assetNodes { assetKey { path } groupName kinds owners { ... on TeamAssetOwner { team } } description
             dependencyKeys { path } isPartitioned } }"""
    )["assetNodes"]
    by_name = {node["assetKey"]["path"][-1]: node for node in nodes}
    lineage = {name: {key["path"][-1] for key in node["dependencyKeys"]} for name, node in by_name.items()}
    assert lineage == {
        "revision": set(),
        "wheel": {"revision"},
        "runtime_image": {"wheel"},
        "smoke_results": {"runtime_image"},
        "test_selection": {"runtime_image", "smoke_results"},
        "test_plan": {"test_selection"},
        "device_test_results": {"runtime_image", "test_selection", "test_plan"},
        "source_build": {"revision"},
        "bazel_test_results": {"source_build"},
        "ledger": {"device_test_results", "bazel_test_results"},
        "flakiness": {"ledger"},
        "coverage": {"ledger"},
        "incidents": {"ledger"},
        "quarantine": {"incidents"},
        "quality_report": {"flakiness", "incidents"},
        "hud": {"flakiness", "coverage", "quarantine", "quality_report"},
    }
    for name, node in by_name.items():
        assert node["owners"] == [{"team": "emu"}], name
        assert node["kinds"], name
        assert node["description"], name
    assert {name: node["groupName"] for name, node in by_name.items()} == {
        "revision": "sources",
        **{stage: pipeline.name for pipeline in PIPELINES for stage in pipeline.stages},
        "ledger": "results",
        "flakiness": "quality",
        "coverage": "quality",
        "incidents": "quality",
        "quarantine": "quality",
        "quality_report": "quality",
        "hud": "quality",
    }
    assert {name for name, node in by_name.items() if not node["isPartitioned"]} == {
        "flakiness", "coverage", "incidents", "quarantine", "quality_report", "hud",
    }  # fmt: skip


def test_partitions_are_revision_by_variant(graphql: Callable[..., Any], faulty_nightly: Build) -> None:
    node = graphql(
        """{ assetNodeOrError(assetKey: {path: ["ledger"]}) { ... on AssetNode {
             partitionDefinition { dimensionTypes { name } } partitionKeysByDimension { name partitionKeys }
             assetPartitionStatuses { ... on MultiPartitionStatuses { ranges { primaryDimStartKey } } } } } }"""
    )["assetNodeOrError"]
    keys = {dimension["name"]: dimension["partitionKeys"] for dimension in node["partitionKeysByDimension"]}
    assert faulty_nightly.revision in keys["revision"]
    assert keys["variant"] == [faulty_nightly.variant]
    assert node["assetPartitionStatuses"]["ranges"], "the nightly's partition is materialized"


def test_metadata_is_worth_reading(graphql: Callable[..., Any], faulty_nightly: Build, bench: Bench) -> None:
    events = graphql(
        """{ assetOrError(assetKey: {path: ["ledger"]}) { ... on Asset { assetMaterializations { partition
             metadataEntries { label ... on IntMetadataEntry { intValue } ... on MarkdownMetadataEntry { mdStr } } } } } }"""
    )["assetOrError"]["assetMaterializations"]
    event = next(e for e in events if e["partition"] == f"{faulty_nightly.revision}|{faulty_nightly.variant}")
    entries = {entry["label"]: entry for entry in event["metadataEntries"]}
    assert entries["expected"]["intValue"] == bench.ledger(faulty_nightly).expected
    assert (entries["flaky"]["intValue"], entries["failed"]["intValue"]) == (1, 3)
    assert "test_op\\[atan2]" in entries["not_passed"]["mdStr"]


def test_checks_of_the_wheel_and_the_ledger(graphql: Callable[..., Any]) -> None:
    nodes = graphql(
        """{ assetNodes { assetKey { path } assetChecksOrError { ... on AssetChecks { checks { name blocking
             executionForLatestMaterialization { status } } } } } }"""
    )["assetNodes"]
    checks = {
        (node["assetKey"]["path"][-1], check["name"]): check
        for node in nodes
        for check in node["assetChecksOrError"]["checks"]
    }
    blocking = {key for key, check in checks.items() if check["blocking"]}
    assert blocking == {
        *(("wheel", name) for name in CHECK_NAMES), ("smoke_results", "smoke_passed"),
        ("ledger", "balanced"), ("ledger", "not_empty"),
    }  # fmt: skip
    assert checks["wheel", "twine"]["executionForLatestMaterialization"]["status"] == "SUCCEEDED"


def test_jobs_schedules_and_sensors(graphql: Callable[..., Any]) -> None:
    repository = {"repositoryName": "__repository__", "repositoryLocationName": "accel_ci.definitions"}
    found = graphql(
        """query ($at: RepositorySelector!) { repositoryOrError(repositorySelector: $at) { ... on Repository {
             jobs { name description } schedules { name cronSchedule executionTimezone pipelineName }
             sensors { name description } } } }""",
        at=repository,
    )["repositoryOrError"]
    assert {job["name"] for job in found["jobs"]} == {
        "__ASSET_JOB", "nightly_integration", "nightly_rbe", "intraday", "main", "pr", "sweep", "confirm", "prune", "start",
        "janitor",
    }  # fmt: skip
    assert {s["name"]: (s["cronSchedule"], s["executionTimezone"], s["pipelineName"]) for s in found["schedules"]} == {
        "nightly_schedule": ("0 2 * * *", "UTC", "nightly_integration"),
        "nightly_rbe_schedule": ("30 2 * * *", "UTC", "nightly_rbe"),
        "intraday_schedule": ("0 6,11,16,21 * * *", "UTC", "intraday"),
        "prune_schedule": ("30 5 * * *", "UTC", "prune"),
        "janitor_schedule": ("*/15 * * * *", "UTC", "janitor"),
    }
    assert {sensor["name"] for sensor in found["sensors"]} == {
        "dead_runs_sensor",
        "upstream_main_sensor",
        "confirm_sensor",
        "stopped_build_sensor",
    }


def test_the_run_shows_as_finished(graphql: Callable[..., Any], faulty_nightly: Build) -> None:
    runs = graphql(
        """{ runsOrError(filter: {pipelineName: "nightly_integration"}) { ... on Runs {
             results { status tags { key value } } } } }"""
    )["runsOrError"]["results"]
    tags = {tag["key"]: tag["value"] for tag in runs[-1]["tags"]}
    assert runs[-1]["status"] == "SUCCESS"
    assert tags["dagster/partition/revision"] == faulty_nightly.revision
