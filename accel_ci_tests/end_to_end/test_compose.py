"""The nightly of the example on one machine with Docker, from the tick of its schedule to the ledger.

The services of `deploy/docker/compose.yaml` run as the file says; `docker compose` itself is not needed. A run is a
container that Dagster's launcher starts, and device tests are containers of the pool, in the image that the run built.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from accel_ci.config.loading import load_project
from accel_ci.pipelines import RUNTIME_IMAGE
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.bench import Bench, make_bench
from accel_ci_tests.fixtures.complete_night import assert_complete
from accel_ci_tests.fixtures.compose import (
    FOLDER,
    Composed,
    build_images,
    build_stand_ins,
    containers_with,
    docker,
    inspect,
    network,
    pinned,
    read_compose,
    remove_images,
    start_services,
)
from accel_ci_tests.fixtures.deployment import git_daemon, wait_for
from accel_ci_tests.fixtures.graphql_server import free_port

NEEDED = ("DOCKER_HOST", "ACCEL_CI_DOCKER_IMAGE")
WITH_SOCKET = {"daemon", "webserver"}
JOB = "nightly_integration"
ENDED = ("SUCCESS", "FAILURE", "CANCELED")
USER = 10001
LIST_LOGS = """
import boto3, os
bucket = boto3.client("s3", endpoint_url=os.environ["ACCEL_CI_LOG_ENDPOINT"])
found = bucket.list_objects_v2(Bucket=os.environ["ACCEL_CI_LOG_BUCKET"], Prefix="dagster-logs/")
print([each["Key"] for each in found.get("Contents", [])])
"""
RUNS = """{ runsOrError { ... on Runs { results { runId jobName status tags { key value } } } } }"""
FAILURES = """query ($run: ID!) { logsForRun(runId: $run) { ... on EventConnection { events { __typename
  ... on MessageEvent { message } ... on ErrorEvent { error { message causes { message } } } } } } }"""


@contextmanager
def short_folder() -> Iterator[Path]:
    """Make a folder with a short path, since workers have sockets in it; it goes afterwards, whoever wrote to it."""
    folder = Path(tempfile.mkdtemp(prefix="compose-"))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def images_removed(data: Path) -> Iterator[None]:
    """Remove the images of the services and of the build at the end."""
    try:
        yield
    finally:
        made = [json.loads(file.read_bytes())["containers"] for file in data.glob(f"builds/*/*/{RUNTIME_IMAGE}.json")]
        remove_images(*(container["id"] for containers in made for container in containers))


def variables_of(folder: Path, network_name: str, image: str) -> dict[str, str]:
    """The values that a user writes into `.env`."""
    socket = os.environ["DOCKER_HOST"].removeprefix("unix://")
    return {
        "ACCEL_CI_IMAGE": image,
        "ACCEL_CI_NETWORK": network_name,
        "ACCEL_CI_POSTGRES_PASSWORD": "not0for0everybody",
        "ACCEL_CI_S3_SECRET_KEY": "nor0this0one",
        "ACCEL_CI_PROJECT": str(folder / "project"),
        "ACCEL_CI_DATA": str(folder / "data"),
        "ACCEL_CI_MACHINE": network_name,
        "ACCEL_CI_UI": f"127.0.0.1:{free_port()}",
        "ACCEL_CI_PUBLIC_UI": f"127.0.0.1:{free_port()}",
        "DOCKER_SOCKET": socket,
        "DOCKER_GID": str(Path(socket).stat().st_gid),
    }


def configure(bench: Bench, address: str, project: Path, base: str) -> None:
    """Write a configuration with device tests in containers, and a nightly that is due in two minutes."""
    soon = datetime.now(timezone.utc) + timedelta(minutes=2)
    bench.configure(
        backend__repository=f"{address}/backend/.git",
        upstream={"repository": f"{address}/upstream/.git", "ref": "refs/heads/main"},
        pool={
            "kind": "docker",
            "cards": 2,
            "card_environment": "EMU_VISIBLE_CARDS",
            "health_probe": ["python", "-m", "torch_emu.health"],
            "environment": {"OMP_NUM_THREADS": "1", "EMU_CARDS": "2"},
        },
        image={"base": base},
        wheels={"builder": base},
        limits={"test_timeout_seconds": 60},
        jobs__nightly__cron=f"{soon.minute} {soon.hour} * * *",
        jobs__nightly__enabled=True,
        jobs__nightly__variants=["py311-torch2.13-emu"],
    )
    project.mkdir()
    shutil.copy(bench.folder / "accel_ci.yaml", project / "accel_ci.yaml")


def adapt(document: dict[str, Any], instance: Path) -> None:
    """Add this machine's packages and certificates to runs, and look more often, as a user may by an override."""
    settings = yaml.safe_load((FOLDER / "dagster.yaml").read_text())
    settings["run_monitoring"]["poll_interval_seconds"] = 10
    settings["run_launcher"]["config"]["env_vars"].append("SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt")
    if (links := os.environ.get("PIP_FIND_LINKS", "")).startswith("/"):
        settings["run_launcher"]["config"]["env_vars"].append(f"PIP_FIND_LINKS={links}")
        environment = document["services"]["code"]["environment"]
        context = json.loads(environment["DAGSTER_CONTAINER_CONTEXT"])
        context["docker"]["container_kwargs"]["volumes"].append(f"{links}:{links}:ro")
        environment["DAGSTER_CONTAINER_CONTEXT"] = json.dumps(context)
    (instance / "dagster.yaml").write_text(yaml.safe_dump(settings))
    shutil.copy(FOLDER / "workspace.yaml", instance / "workspace.yaml")


@dataclass(frozen=True)
class Machine:
    """The services on this machine, with a nightly that is due soon; `seen` has all containers of runs and of the pool."""

    composed: Composed
    url: str
    public_url: str
    project: Path
    data: Path
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The machine's name, in results and on the pool's containers."""
        return self.composed.network

    def ask(self, query: str, **variables: Any) -> Any:
        """Ask the webserver by GraphQL."""
        answer = httpx.post(f"{self.url}/graphql", json={"query": query, "variables": variables}, timeout=60).json()
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs of the nightly, newest first; there are those of the janitor, too."""
        found = self.ask(RUNS)["runsOrError"]["results"]
        return [run for run in found if run["jobName"] == JOB]

    def first_run(self) -> str:
        """Wait for the run of the schedule."""
        return str(wait_for("the schedule starts a run", lambda: next(iter(self.runs()), None), 300)["runId"])

    def retry_of(self, run: str) -> str | None:
        """Return the run that tries another one again, if there is one."""
        tag = {"key": "dagster/parent_run_id", "value": run}
        return next((str(one["runId"]) for one in self.runs() if tag in one["tags"]), None)

    def look(self) -> list[str]:
        """Remember the containers of runs and of the pool, and return the names of the latter that are there."""
        pool = containers_with(f"accel-ci.host={self.name}")
        for name in {*containers_with("dagster/run_id"), *pool} - set(self.seen):
            with suppress(AssertionError):  # gone already
                found = inspect(name)
                if self.name in (found["Config"]["Hostname"], found["Config"]["Labels"].get("accel-ci.host")):
                    self.seen[name] = found
        return list(pool)

    def wait_for_end(self, run: str) -> str:
        """Wait until a run has ended, and return its status."""

        def ended() -> str | None:
            self.look()
            [status] = [str(one["status"]) for one in self.runs() if one["runId"] == run]
            return status if status in ENDED else None

        return str(wait_for("the run ends", ended, 1500, every=1))

    def labelled(self, label: str, value: str | None = None) -> list[dict[str, Any]]:
        """Return the containers that were there and have a label, or a label with a value."""
        labels = [(found["Config"]["Labels"].get(label), found) for found in self.seen.values()]
        return [found for own, found in labels if own is not None and value in (None, own)]


@contextmanager
def nightly_on_a_machine() -> Iterator[Machine]:
    """Start the services with a nightly that is due in two minutes."""
    if missing := [name for name in NEEDED if not os.environ.get(name)]:
        pytest.skip(f"the services of compose.yaml need {', '.join(missing)}")
    with short_folder() as folder, images_removed(folder / "data"), network() as composed:
        instance, project, data = folder / "instance", folder / "project", folder / "data"
        instance.mkdir()
        data.mkdir()
        os.chown(data, USER, USER)
        base = os.environ["ACCEL_CI_DOCKER_IMAGE"]
        variables = variables_of(folder, composed.network, build_images(base, folder))
        document = read_compose(variables)
        adapt(document, instance)
        stand_ins = build_stand_ins(base, folder, document)
        bench = make_bench(folder)
        with git_daemon(folder, composed.gateway) as address:
            configure(bench, address, project, pinned(base))
            start_services(composed, document, instance, stand_ins)
            url, public_url = (f"http://{variables[name]}" for name in ("ACCEL_CI_UI", "ACCEL_CI_PUBLIC_UI"))
            yield Machine(composed, url, public_url, project, data)


def sockets_of(container: dict[str, Any]) -> list[str]:
    return [mount["Destination"] for mount in container["Mounts"] if mount["Destination"].endswith("docker.sock")]


def assert_least_privilege(composed: Composed) -> None:
    """Check users, capabilities, the engine's socket, addresses and logs of the services' containers."""
    for service, name in composed.names.items():
        found = inspect(name)
        host = found["HostConfig"]
        assert found["Config"]["User"].partition(":")[0] not in ("", "0", "root"), service
        assert host["CapDrop"] == ["ALL"], service
        assert host["SecurityOpt"] == ["no-new-privileges:true"], service
        assert not host["Privileged"], service
        assert host["Memory"] > 0, service
        assert host["LogConfig"]["Config"] == {"max-file": "3", "max-size": "10m"}, service
        assert bool(sockets_of(found)) == (service in WITH_SOCKET), service
        published = [each for ports in (host["PortBindings"] or {}).values() for each in ports]
        assert {each["HostIp"] for each in published} <= {"127.0.0.1"}, service


def assert_only_shows(machine: Machine, run: str) -> None:
    """Check that the public webserver shows the run and refuses to delete it."""
    public = replace(machine, url=machine.public_url)
    assert [one["runId"] for one in public.runs()] == [run]
    removal = "mutation ($run: String!) { deletePipelineRun(runId: $run) { __typename } }"
    assert public.ask(removal, run=run)["deletePipelineRun"]["__typename"] == "UnauthorizedError"


def test_a_nightly_from_the_tick_of_its_schedule_to_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    with nightly_on_a_machine() as machine:
        assert_least_privilege(machine.composed)
        run = machine.first_run()
        status = machine.wait_for_end(run)
        assert status == "SUCCESS", machine.ask(FAILURES, run=run)
        [own] = machine.labelled("dagster/run_id", run)
        assert sockets_of(own)
        assert own["HostConfig"]["CapDrop"] == ["ALL"]
        workers = machine.labelled("accel-ci.worker")
        assert {found["Config"]["Labels"]["accel-ci.card"] for found in workers} >= {"0", "1"}
        for found in workers:
            assert found["HostConfig"]["NetworkMode"] == "none"
            assert found["Config"]["User"] == f"{USER}:{USER}"
            assert not sockets_of(found)
        wait_for("the run's container is gone", lambda: not containers_with(f"dagster/run_id={run}"), 60)
        assert machine.look() == []
        assert run in machine.composed.python("code", LIST_LOGS)
        assert_only_shows(machine, run)
        monkeypatch.setenv("ACCEL_CI_HOME", str(machine.data))  # the machine sees it at the same path
        assert_complete(Workspace(load_project(machine.project / "accel_ci.yaml")))


def test_a_nightly_whose_container_is_killed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with nightly_on_a_machine() as machine:
        run = machine.first_run()

        def tests_run() -> bool:
            assert machine.runs()[0]["status"] not in ENDED, machine.ask(FAILURES, run=run)
            return any("-device-" in name for name in machine.look())

        wait_for("the tests on the cards begin", tests_run, 900, every=1)
        [killed] = containers_with(f"dagster/run_id={run}")
        docker("kill", killed)
        assert machine.wait_for_end(run) == "FAILURE"
        again = wait_for("the daemon tries again", lambda: machine.retry_of(run), 120)
        status = machine.wait_for_end(again)
        assert status == "SUCCESS", machine.ask(FAILURES, run=again)
        assert machine.look() == []
        monkeypatch.setenv("ACCEL_CI_HOME", str(machine.data))
        assert_complete(Workspace(load_project(machine.project / "accel_ci.yaml")))
