"""The metrics of a project with a few nights, as Prometheus would read them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from accel_ci.config.settings import Project
from accel_ci.model import VERDICTS, Artifact, CardReport, DeviceTestResults
from accel_ci.pipelines import DEVICE_TEST_RESULTS, INTEGRATION
from accel_ci.storage.manifests import PipelineRun
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import ROOT
from accel_ci_tests.fixtures.finished_nights import NIGHTS, TODAY, fails, write_night
from accel_ci_tests.fixtures.project import write_project

Samples = dict[tuple[str, ...], float]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project whose newest night has a ledger, and waited for half a minute in the queue."""
    project = write_project(tmp_path)
    workspace = Workspace(project)
    for night in (NIGHTS - 2, NIGHTS - 1):
        build = write_night(workspace, night, {"unit/test_ops.py::test_add[0]": fails()}, backend=night)
        run = PipelineRun(
            "run", TODAY, TODAY.replace(hour=3), "ledger", reported=True, began=(), started_at=TODAY.replace(second=30)
        )
        workspace.manifests.write(workspace.manifests.run_file(INTEGRATION, build), run)
    cards = CardReport("card 0", True, None, 30, 30.0, 5.0), CardReport("card 1", True, None, 10, 10.0, 5.0)
    tested = DeviceTestResults(Artifact("0" * 64, "expected.json", 2), ("unit",), {}, (), cards, 40.0, 20.0, 50.0)
    workspace.manifests.write(workspace.manifests.path(DEVICE_TEST_RESULTS, build.revision, build.variant), tested)
    return project


def accel_ci(project: Project, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "accel_ci.cli", "--config", str(project.config_path), "metrics", *arguments]


def samples(text: str) -> Samples:
    """Return each sample by its name and the values of its labels, in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_newest_build_of_each_variant_is_told(project: Project) -> None:
    told = samples(subprocess.run(accel_ci(project), capture_output=True, text=True, timeout=60, check=True).stdout)
    assert told["accel_ci_build_green", "nightly", "py3"] == 1
    assert told["accel_ci_build_tests", "nightly", "py3", "passed"] == 40
    assert {key[-1] for key in told if key[0] == "accel_ci_build_tests"} == set(VERDICTS)
    assert told["accel_ci_build_seconds", "queue", "nightly", "py3"] == 30
    spent = {key[1:]: value for key, value in told.items() if key[0] == "accel_ci_build_card_seconds"}
    assert spent == {("busy", "nightly", "py3"): 40, ("setup", "nightly", "py3"): 10, ("idle", "nightly", "py3"): 30}
    assert told["accel_ci_build_seconds", "wall", "nightly", "py3"] == 3600
    assert told["accel_ci_build_ended_timestamp_seconds", "nightly", "py3"] == TODAY.replace(hour=3).timestamp()
    assert told["accel_ci_queue_oldest_seconds",] == 0


def test_the_dashboard_shows_what_there_is(project: Project) -> None:
    told = subprocess.run(accel_ci(project), capture_output=True, text=True, timeout=60, check=True).stdout
    shown = set(re.findall(r"accel_ci_\w+", (ROOT / "deploy" / "grafana" / "accel_ci.json").read_text()))
    assert {family.name for family in text_string_to_metric_families(told)} == shown


def test_a_file_and_a_server_have_the_same(project: Project, tmp_path: Path) -> None:
    file = tmp_path / "accel_ci.prom"
    subprocess.run(accel_ci(project, "--textfile", str(file)), timeout=60, check=True)
    server = subprocess.Popen(accel_ci(project, "--serve", "127.0.0.1:0"), stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        address = re.match(r"http://\S+", server.stderr.readline())
        assert address is not None
        with urllib.request.urlopen(address[0], timeout=30) as answer:
            served = samples(answer.read().decode())
        assert served == samples(file.read_text())
    finally:
        os.kill(server.pid, signal.SIGTERM)
        server.wait(30)
    wrong = subprocess.run(accel_ci(project, "--serve", "localhost"), capture_output=True, text=True, timeout=60)
    assert (wrong.returncode, "has no port" in wrong.stderr) == (2, True)
