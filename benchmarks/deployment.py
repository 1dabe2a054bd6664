"""Dagster with many builds and a queue, on PostgreSQL: `python -m benchmarks.deployment`.

An instance of `deploy/kubernetes/base/dagster.yaml` gets the materializations of so many builds, without running them. Then
a webserver, a daemon and a code server of their own processes work on it, with runs in the queue, of which one goes at a
time. Measured are the ticks of schedules and sensors, the pages of assets and of runs as the browser asks for them, and the
connections that PostgreSQL has at most. `ACCEL_CI_POSTGRES_URL` names the database.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from rich.console import Console
from rich.table import Table
from sqlalchemy import create_engine, text

from accel_ci.defs.partitions import REVISIONS, partition_key
from accel_ci.model import Build, Revision, Source
from accel_ci.pipelines import STAGES
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import ROOT
from accel_ci_tests.fixtures.graphql_server import Server, free_port
from accel_ci_tests.fixtures.postgres import empty_postgres
from accel_ci_tests.fixtures.project import minimal_config
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night

GOALS = {"a tick, s": 5.0, "an asset's page, s": 2.0, "the runs' page, s": 2.0}
"""At most so much."""

_LAUNCH = """mutation ($selector: JobOrPipelineSelector!, $tags: [ExecutionTag!]) { launchPipelineExecution(
  executionParams: {selector: $selector, executionMetadata: {tags: $tags}}) { __typename } }"""
_ASSET = """query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  partitionKeysByDimension { name partitionKeys }
  partitionStats { numPartitions numMaterialized numFailed }
  assetPartitionStatuses { ... on MultiPartitionStatuses { ranges { primaryDimStartKey } primaryDimensionName } }
  assetMaterializations(limit: 50) { runId timestamp partition metadataEntries { label } } } } }"""
_RUNS = """{ runsOrError(limit: 30) { ... on Runs { results { runId status jobName tags { key value } startTime } } }
  runs: runsOrError(filter: {statuses: [QUEUED, STARTED]}, limit: 100) { ... on Runs { results { runId } } } }"""


def lay(night: ToyNight, instance: dg.DagsterInstance, revisions: int) -> None:
    """Report the materializations of all stages of so many revisions in all variants."""
    workspace, now = Workspace(night.project), datetime.now(timezone.utc)
    source = Source("repository", "main", "a" * 40)
    for number in range(revisions):
        at = now - timedelta(hours=8 * (revisions - number))
        key = f"intraday-{at:%Y%m%d-%H%M}"
        workspace.manifests.add_revision(Revision(key, "intraday", at, source, source))
        instance.add_dynamic_partitions(str(REVISIONS.name), [key])
        for variant in night.project.settings.variants:
            for stage in STAGES:
                partition = partition_key(Build(key, variant.name))
                instance.report_runless_asset_event(dg.AssetMaterialization(stage, partition=partition))


class Connections(threading.Thread):
    """Counts the connections to the database until it is told to stop."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._engine = create_engine(url.replace("postgresql://", "postgresql+psycopg2://", 1))
        self.most, self.stopped = 0, threading.Event()

    def run(self) -> None:
        """Look twice a second."""
        with self._engine.connect() as connection:
            while not self.stopped.wait(0.5):
                found = int(
                    connection.execute(
                        text("SELECT count(*) - 1 FROM pg_stat_activity WHERE datname IS NOT NULL")
                    ).scalar_one()
                )
                self.most = max(self.most, found)
                connection.rollback()


def timed(ask: Callable[[], Any], times: int = 5) -> float:
    """Return the median seconds of a question."""
    found = []
    for _ in range(times):
        began = time.monotonic()
        ask()
        found.append(time.monotonic() - began)
    return statistics.median(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, and return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deployment", description=__doc__.partition("\n")[0])
    parser.add_argument("--revisions", type=int, default=30)
    parser.add_argument("--variants", type=int, default=12)
    parser.add_argument("--queued", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=120, help="how long the daemon is watched")
    given = parser.parse_args(argv)
    if not os.environ.get("ACCEL_CI_POSTGRES_URL"):
        parser.error("set ACCEL_CI_POSTGRES_URL to a database, such as postgresql://postgres@127.0.0.1:5432/postgres")
    measured: dict[str, float] = {}
    for url in empty_postgres():
        with tempfile.TemporaryDirectory(prefix="accel-ci-deployment-") as folder:
            measured = measure(Path(folder), url, given.revisions, given.variants, given.queued, given.seconds)
    table = Table(
        "", "measured", "goal", title=f"{given.revisions} revisions × {given.variants} variants, {given.queued} runs queued"
    )
    for name, value in measured.items():
        table.add_row(name, f"{value:,.2f}".rstrip("0").rstrip("."), f"≤ {GOALS[name]:g}" if name in GOALS else "")
    Console(soft_wrap=True).print(table)
    return int(any(measured[name] > goal for name, goal in GOALS.items()))


def measure(folder: Path, url: str, revisions: int, variants: int, queued: int, seconds: int) -> dict[str, float]:
    """Lay the builds, queue the runs, and return what was measured."""
    [variant] = [{**minimal_config()["variants"][0], "torch": "torch==2.13.0+toy", "requirements": ["pytest"]}]  # type: ignore[index]
    night = make_toy_night(folder, variants=[{**variant, "name": f"v{number:02}"} for number in range(variants)])
    home = folder / "dagster"
    home.mkdir()
    document = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "base" / "dagster.yaml").read_text())
    for section in ("run_launcher", "compute_logs"):  # runs are processes here
        del document[section]
    document["run_monitoring"]["max_resume_run_attempts"] = 0  # which a process cannot be
    document["concurrency"]["runs"]["max_concurrent_runs"] = 1
    (home / "dagster.yaml").write_text(yaml.safe_dump(document))
    night.environment.update({"DAGSTER_HOME": str(home), "ACCEL_CI_DAGSTER_POSTGRES_URL": url})
    os.environ["ACCEL_CI_DAGSTER_POSTGRES_URL"] = url
    measured: dict[str, float] = {}
    with dg.DagsterInstance.from_config(str(home)) as instance:
        began = time.monotonic()
        lay(night, instance, revisions)
        measured["builds laid, s"] = time.monotonic() - began
        connections, port = Connections(url), free_port()
        connections.start()
        server = Server(night.command("dev", "--port", str(port)), port, night.folder, night.environment)
        try:
            newest = instance.get_dynamic_partitions(str(REVISIONS.name))[-1]
            selector = {"repositoryName": "__repository__", "repositoryLocationName": "accel_ci", "pipelineName": "intraday"}
            for number in range(queued):
                tags = {"dagster/partition/revision": newest, "dagster/partition/variant": f"v{number % variants:02}"}
                tags["dagster/partition"] = str(partition_key(Build(newest, f"v{number % variants:02}")))
                asked = {"selector": selector, "tags": [{"key": key, "value": value} for key, value in tags.items()]}
                launched = server.ask(_LAUNCH, **asked)["launchPipelineExecution"]
                if launched["__typename"] != "LaunchRunSuccess":
                    raise SystemExit(f"a run was not launched: {launched}")
            time.sleep(seconds)
            measured["an asset's page, s"] = timed(lambda: server.ask(_ASSET, key={"path": ["ledger"]}))
            measured["the runs' page, s"] = timed(lambda: server.ask(_RUNS))
            ticks = [
                tick.end_timestamp - tick.timestamp
                for state in instance.all_instigator_state()
                for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=10)
                if tick.end_timestamp is not None
            ]
            measured["a tick, s"] = max(ticks, default=0.0)
            waiting = dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])
            measured["runs still in the queue"] = instance.get_runs_count(waiting)
        finally:
            server.stop()
            connections.stopped.set()
            connections.join()
        measured["connections to PostgreSQL, at most"] = connections.most
    return measured


if __name__ == "__main__":
    sys.exit(main())
