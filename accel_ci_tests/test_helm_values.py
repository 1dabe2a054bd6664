"""The values for Dagster's Helm chart agree with the plain manifests on runs, limits, accounts and resources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from accel_ci_tests.fixtures.checkout import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
VALUES = yaml.safe_load((KUBERNETES / "helm" / "values.yaml").read_text())
INSTANCE = yaml.safe_load((KUBERNETES / "base" / "dagster.yaml").read_text())
LAUNCHER = VALUES["runLauncher"]["config"]["k8sRunLauncher"]
SERVICES = {
    "accel-ci-webserver": VALUES["dagsterWebserver"],
    "accel-ci-public": VALUES["dagsterWebserver"],
    "accel-ci-daemon": VALUES["dagsterDaemon"],
    "accel-ci-code": VALUES["dagster-user-deployments"]["deployments"][0],
}


def in_snake_case(section: dict[str, Any]) -> dict[str, Any]:
    """The keys of a section of the values as Dagster spells them."""
    return {re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower(): value for name, value in section.items()}


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each deployment of the base by its name, with the specification of its pod and of its container."""
    for file in sorted((KUBERNETES / "base").glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            if document.get("kind") == "Deployment":
                pod = document["spec"]["template"]["spec"]
                yield document["metadata"]["name"], pod, pod["containers"][0]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("concurrency", {"runs": in_snake_case(VALUES["concurrency"]["runs"])}),
        ("run_monitoring", in_snake_case(VALUES["dagsterDaemon"]["runMonitoring"])),
        ("run_retries", in_snake_case(VALUES["dagsterDaemon"]["runRetries"])),
        ("python_logs", in_snake_case(VALUES["pythonLogs"])),
        ("telemetry", VALUES["telemetry"]),
        ("freshness", VALUES["additionalInstanceConfig"]["freshness"]),
        ("nux", VALUES["additionalInstanceConfig"]["nux"]),
    ],
)
def test_the_instance_has_the_same_section(name: str, values: dict[str, Any]) -> None:
    assert values == INSTANCE[name]


def test_the_instance_has_no_section_that_is_compared_nowhere() -> None:
    compared = {"concurrency", "run_monitoring", "run_retries", "python_logs", "telemetry", "freshness", "nux"}
    assert set(INSTANCE) == compared | {"storage", "compute_logs", "run_launcher"}


def test_runs_start_the_same_way() -> None:
    config = INSTANCE["run_launcher"]["config"]
    assert INSTANCE["run_launcher"]["class"] == VALUES["runLauncher"]["type"]
    assert [each["name"] for each in LAUNCHER["envConfigMaps"]] == config["env_config_maps"]
    assert [each["name"] for each in LAUNCHER["envSecrets"]] == config["env_secrets"]
    assert LAUNCHER["imagePullPolicy"] == config["image_pull_policy"]
    assert (LAUNCHER["volumes"], LAUNCHER["volumeMounts"]) == (config["volumes"], config["volume_mounts"])
    assert VALUES["global"]["dagsterHome"] == config["dagster_home"]
    own = in_snake_case(LAUNCHER["runK8sConfig"])
    assert own["pod_spec_config"].pop("service_account_name") == config["service_account_name"]
    assert own == config["run_k8s_config"]
    deployment = SERVICES["accel-ci-code"]
    assert deployment["includeConfigInLaunchedRuns"] == {"enabled": False}  # runs would get the account of the code server


def test_logs_go_to_the_same_bucket() -> None:
    logs = VALUES["computeLogManager"]
    assert logs["type"] == INSTANCE["compute_logs"]["class"]
    assert in_snake_case(logs["config"]["s3ComputeLogManager"]) == INSTANCE["compute_logs"]["config"]


@pytest.mark.parametrize(("name", "pod", "container"), [pytest.param(*each, id=each[0]) for each in containers()])
def test_services_have_the_same_rights_and_resources(name: str, pod: dict[str, Any], container: dict[str, Any]) -> None:
    own = SERVICES[name]
    assert own["podSecurityContext"] == pod["securityContext"]
    assert own["securityContext"] == container["securityContext"]
    assert own["resources"] == container["resources"]
    maps = [{"configMapRef": each} for each in own["envConfigMaps"]]
    assert [*maps, *({"secretRef": each} for each in own["envSecrets"])] == container["envFrom"]
    account = VALUES["dagster-user-deployments"]["serviceAccount"] if name == "accel-ci-code" else VALUES["serviceAccount"]
    assert account == {"create": False, "name": "accel-ci-dagster"}
    if name != "accel-ci-public":  # the chart gives both webservers one account
        assert pod["serviceAccountName"] == account["name"]
    liveness = container.get("livenessProbe", {})
    if "exec" in liveness:
        assert own["livenessProbe"] == liveness


def test_the_public_webserver_is_there() -> None:
    assert VALUES["dagsterWebserver"]["enableReadOnly"] is True
