"""The files of `deploy/docker` agree with each other, with the manifests of a cluster, and with Dagster and Compose."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from dagster._config import process_config
from dagster_docker import DockerRunLauncher
from dagster_docker.container_context import DockerContainerContext

from accel_ci.docker.client import docker_client
from accel_ci.errors import BuildError
from accel_ci_tests.fixtures.checkout import ROOT
from accel_ci_tests.fixtures.compose import FOLDER, read_compose

VARIABLES = {
    "ACCEL_CI_POSTGRES_PASSWORD": "one", "ACCEL_CI_S3_SECRET_KEY": "two", "DOCKER_GID": "106",
    "ACCEL_CI_PROJECT": "/srv/project", "ACCEL_CI_DATA": "/srv/data",
}  # fmt: skip
INSTANCE = yaml.safe_load((FOLDER / "dagster.yaml").read_text())
LAUNCHER = INSTANCE["run_launcher"]["config"]
SERVICES = read_compose(VARIABLES)["services"]


@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_what_has_no_default_must_be_set(name: str) -> None:
    with pytest.raises(AssertionError, match=f"{name}: set it in"):
        read_compose({**VARIABLES, name: ""})
    assert f"\n{name}=" in (FOLDER / ".env.example").read_text()


@pytest.mark.parametrize("section", ["compute_logs", "python_logs", "run_retries", "telemetry", "freshness", "nux"])
def test_the_instance_has_the_same_section_as_on_a_cluster(section: str) -> None:
    assert INSTANCE[section] == yaml.safe_load((ROOT / "deploy/kubernetes/base/dagster.yaml").read_text())[section]


def test_the_daemon_has_every_variable_that_runs_get() -> None:
    named = {name for name in LAUNCHER["env_vars"] if "=" not in name}
    assert named - set(SERVICES["daemon"]["environment"]) == set()


@pytest.mark.parametrize("service", ["code", "daemon", "webserver", "public"])
def test_services_have_every_variable_of_the_instance(service: str) -> None:
    named = set(re.findall(r"env: (\w+)", (FOLDER / "dagster.yaml").read_text()))
    assert named - set(SERVICES[service]["environment"]) == set()


def test_dagster_accepts_the_settings_of_runs() -> None:
    schema = DockerRunLauncher.config_type()  # type: ignore[no-untyped-call]
    config = process_config(schema, {**LAUNCHER, "image": "accel-ci", "network": "accel-ci"})
    assert config.success, config.errors
    context = json.loads(SERVICES["code"]["environment"]["DAGSTER_CONTAINER_CONTEXT"])
    own = DockerContainerContext.create_from_config(context)  # type: ignore[no-untyped-call]
    assert own.container_kwargs["volumes"] == [
        "/srv/data:/srv/data", "/srv/project:/project:ro", "/var/run/docker.sock:/var/run/docker.sock",
    ]  # fmt: skip
    merged = DockerContainerContext(container_kwargs=LAUNCHER["container_kwargs"]).merge(own).container_kwargs
    assert merged["cap_drop"] == ["ALL"]
    assert merged["group_add"] == ["106"]


def test_images_are_pinned() -> None:
    images = {service["image"] for service in SERVICES.values()} - {"accel-ci-docker"}
    assert len(images) == 2
    assert all(re.search(r":\d+\.\d+", image) for image in images)


def test_compose_accepts_the_file(tmp_path: Path) -> None:
    try:
        client = docker_client()
    except BuildError as error:
        pytest.skip(str(error))
    if subprocess.run([client, "compose", "version"], capture_output=True, timeout=60).returncode != 0:
        pytest.skip(f"{client} has no plug-in compose")
    command = [
        client,
        "compose",
        "--file",
        str(FOLDER / "compose.yaml"),
        "--profile",
        "public",
        "config",
        "--format",
        "json",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env={**os.environ, **VARIABLES}
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["services"]) == set(SERVICES)
