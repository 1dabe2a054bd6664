"""From the file of GitHub's event to the callbacks: a dispatch, the sensor, the run of a build, and its report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.instance import open_instance
from accel_ci.relay.downstream.deliveries import deliveries_of
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.relay import TOKEN, StandInRelay, client_payload, event, pull_request, stand_in_relay
from accel_ci_tests.fixtures.stand_in_torch import write_torch
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night


@pytest.fixture
def relay() -> Iterator[StandInRelay]:
    with stand_in_relay() as relay:
        relay.dispatched.add("d-1")
        yield relay


def dispatch(night: ToyNight, document: bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        night.command("relay", "dispatch"), input=document, capture_output=True, timeout=120, cwd=night.folder,
        env={**night.environment, **environment},
    )  # fmt: skip


def tick(night: ToyNight, instance: dg.DagsterInstance, name: str) -> Any:
    repository = build_definitions(night.project).get_repository_def()
    context = dg.build_sensor_context(instance=instance, instance_ref=instance.get_ref(), repository_def=repository)
    return repository.get_sensor_def(name).evaluate_tick(context)


def test_a_pull_request_of_upstream_is_built_and_its_results_come_back(
    tmp_path: Path, relay: StandInRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = {"name": "main", "python": f"3.{sys.version_info.minor}", "torch": "torch==2.13.0+toy", "runtime": "none",
               "torch_source": "main", "requirements": ["pytest"]}  # fmt: skip
    section = {"callbacks": [relay.url], "token_file": "token", "enabled": True}
    night = make_toy_night(tmp_path, variants=[variant], relay=section)
    (tmp_path / "token").write_text(TOKEN)
    sha = commit(tmp_path / "upstream", {"version.txt": "2"})
    git(tmp_path / "upstream", "update-ref", "refs/pull/7/head", sha)
    write_torch(tmp_path / "links", sha=sha)
    for name in ("PIP_FIND_LINKS",):
        monkeypatch.setenv(name, night.environment[name])

    refused = dispatch(night, event(pull_request(sha), "../../x"))
    assert (refused.returncode, b"delivery_id" in refused.stderr) == (2, True)
    runner = {"GITHUB_RUN_ID": "11", "GITHUB_RUN_ATTEMPT": "1", "GITHUB_SERVER_URL": "https://github.com",
              "GITHUB_REPOSITORY": "o/r"}  # fmt: skip
    for known in ("", ", which is known already"):
        done = dispatch(night, event(pull_request(sha)), **runner)
        assert done.stdout.decode() == f"d-1: refs/pull/7/head {sha[:12]}{known}\n", done.stderr

    with open_instance(night.project) as instance:
        [request] = tick(night, instance, "relay_pr_sensor").run_requests
        assert request.partition_key == f"pr-7-{sha[:12]}|main"
        job = build_definitions(night.project, in_process=True).resolve_job_def(request.job_name)
        result = job.execute_in_process(instance=instance, partition_key=request.partition_key, tags=request.tags)
        assert result.success
        assert not tick(night, instance, "relay_pr_sensor").run_requests

        dry = night.accel_ci("relay", "report", "--dry-run")
        assert [json.loads(line)["workflow"]["status"] for line in dry.splitlines()] == ["in_progress", "completed"] * 2
        assert relay.requests == 0
        assert "completed: taken" in tick(night, instance, "relay_report_sensor").skip_message
        assert "nothing is due" in tick(night, instance, "relay_report_sensor").skip_message

    assert "nothing is due" in night.accel_ci("relay", "report")
    assert (relay.refused, relay.requests) == ([], 4)
    smoke, unit = (relay.jobs("completed")[job] for job in ("main~smoke", "main~unit"))
    assert (smoke["conclusion"], smoke["test_results"]) == ("success", {"passed": 1, "failed": 0, "skipped": 0, "total": 1})
    assert (unit["conclusion"], unit["test_results"]) == ("failure", {"passed": 4, "failed": 2, "skipped": 0, "total": 6})
    assert sorted(test["name"].rpartition("::")[2] for test in unit["failed_tests_detail"]) == ["test_n[0]", "test_n[3]"]
    assert unit["url"] == "https://github.com/o/r/actions/runs/11"
    assert all(body["payload"] == client_payload(pull_request(sha))["payload"] for body in relay.taken)
    kept = deliveries_of(Workspace(night.project)).find("d-1")
    assert kept is not None
    assert kept.outcome.state == "reported"
