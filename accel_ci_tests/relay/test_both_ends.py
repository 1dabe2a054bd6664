"""Both ends together: upstream's webhook, the server, a backend's builds, their callbacks, check runs, results and pages.

The server and the backend are those of this project; GitHub and the issuer of the tokens are stand-ins on loopback.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import httpx
import pytest

from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.instance import open_instance
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.github_server import GitHubServer
from accel_ci_tests.fixtures.oidc_issuer import OidcIssuer
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.relay_server import UPSTREAM, RelayServer, pull_request
from accel_ci_tests.fixtures.stand_in_torch import write_torch
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night

BACKEND = "team/backend"
JOBS = ("main~smoke", "main~unit")


@pytest.fixture
def relay(tmp_path: Path, github: GitHubServer, issuer: OidcIssuer) -> Iterator[RelayServer]:
    """A server with the backend at L3, for the device `emu`."""
    folder = tmp_path / "relay"
    folder.mkdir()
    relay = RelayServer(
        folder, github.url, f"L3: {{emu: {{{BACKEND}: [ann]}}}}\n",
        issuers=[{"issuer": issuer.url, "identity": "repository"}], pages={"every_s": 0.5},
    )  # fmt: skip
    try:
        relay.start()
        yield relay
    finally:
        relay.stop()


def backend(folder: Path, relay: RelayServer) -> ToyNight:
    """A backend whose builds take seconds; they are with the PyTorch of upstream's checkout."""
    variant = {"name": "main", "python": f"3.{sys.version_info.minor}", "torch": "torch==2.13.0+toy", "runtime": "none",
               "torch_source": "main", "requirements": ["pytest"]}  # fmt: skip
    section = {
        "repository": UPSTREAM, "callbacks": [relay.url.replace("webhook", "callback")], "token_file": "token",
        "nightly": True, "enabled": True,
    }  # fmt: skip
    return make_toy_night(folder, variants=[variant], relay=section)


def tick(night: ToyNight, instance: dg.DagsterInstance, name: str) -> Any:
    """Evaluate a sensor, as the daemon does."""
    repository = build_definitions(night.project).get_repository_def()
    context = dg.build_sensor_context(instance=instance, instance_ref=instance.get_ref(), repository_def=repository)
    return repository.get_sensor_def(name).evaluate_tick(context)


def page(relay: RelayServer, name: str) -> Any:
    """The data of a page; None before it is there."""
    answer = httpx.get(relay.url.replace("/github/webhook", f"/hud/{name}.json"), timeout=30)
    return answer.json() if answer.status_code == 200 else None


def test_from_the_webhook_of_a_pull_request_to_its_page(
    tmp_path: Path, github: GitHubServer, issuer: OidcIssuer, relay: RelayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = backend(tmp_path, relay)
    (tmp_path / "token").write_text(issuer.token(BACKEND))
    sha = commit(tmp_path / "upstream", {"version.txt": "2"})
    git(tmp_path / "upstream", "update-ref", "refs/pull/7/head", sha)
    write_torch(tmp_path / "links", sha=sha)
    monkeypatch.setenv("PIP_FIND_LINKS", night.environment["PIP_FIND_LINKS"])

    webhook = pull_request()
    webhook["pull_request"]["head"]["sha"] = sha
    webhook["pull_request"]["labels"] = [{"name": "ciflow/crcr/emu"}]
    assert relay.deliver(webhook, delivery="d-1").status_code == 202
    wait_for(lambda: len(github.dispatches) == 1)
    (dispatch,) = github.dispatches
    assert (dispatch.repository, dispatch.delivery) == (BACKEND, "d-1")

    # GitHub starts the backend's workflow, with the dispatch in a file.
    event = json.dumps({"action": dispatch.event_type, "client_payload": dispatch.client_payload})
    done = subprocess.run(
        night.command("relay", "dispatch"), input=event, capture_output=True, text=True, timeout=120, cwd=night.folder,
        env=night.environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with open_instance(night.project) as instance:
        [request] = tick(night, instance, "relay_pr_sensor").run_requests
        job = build_definitions(night.project, in_process=True).resolve_job_def(request.job_name)
        assert job.execute_in_process(instance=instance, partition_key=request.partition_key, tags=request.tags).success
        tick(night, instance, "relay_report_sensor")
        assert "nothing is due" in tick(night, instance, "relay_report_sensor").skip_message

    wait_for(lambda: len(_ended(page(relay, "pulls/7"))) == len(JOBS))
    smoke, unit = _ended(page(relay, "pulls/7"))
    assert (smoke["job"], smoke["state"]["words"], smoke["passed"], smoke["failed"]) == (JOBS[0], "passed", 1, 0)
    assert (unit["job"], unit["state"]["words"], unit["passed"], unit["failed"]) == (JOBS[1], "failed", 4, 2)
    assert sorted(failure["test"].rpartition("::")[2] for failure in unit["failures"]) == ["test_n[0]", "test_n[3]"]
    checks = {
        run["name"]: (run["repository"], run["head_sha"], run["status"], run["conclusion"])
        for run in github.check_runs.runs.values()
    }
    assert checks == {
        f"crcr/{BACKEND}/accel-ci/{job}": (UPSTREAM, sha, "completed", conclusion)
        for job, conclusion in zip(JOBS, ("success", "failure"), strict=True)
    }


def _ended(pull: Any) -> list[dict[str, Any]]:
    """The jobs of a pull request's page that have ended, by name."""
    commits = pull["commits"] if pull is not None else []
    jobs = (job for one in commits for job in one["jobs"] if job["execution_s"] is not None)
    return sorted(jobs, key=lambda job: str(job["job"]))


def test_a_nightly_reaches_the_page_of_its_backend(tmp_path: Path, issuer: OidcIssuer, relay: RelayServer) -> None:
    night = backend(tmp_path, relay)
    (tmp_path / "token").write_text(issuer.token(BACKEND))
    sha = git(tmp_path / "upstream", "rev-parse", "HEAD")
    write_torch(tmp_path / "links", sha=sha)
    night.accel_ci("run", "nightly")
    assert "completed: taken" in night.accel_ci("relay", "report")
    assert "nothing is due" in night.accel_ci("relay", "report")

    def recent() -> list[dict[str, Any]]:
        found = page(relay, f"backends/{BACKEND.replace('/', '~')}")
        return sorted(found["recent"], key=lambda job: str(job["job"])) if found is not None else []

    wait_for(lambda: len(recent()) == len(JOBS))
    assert [(job["job"], job["event"], job["head_sha"]) for job in recent()] == [(job, "nightly", sha) for job in JOBS]
