"""The manifests of `deploy/kubernetes/relay` agree with each other, and with the settings that the server reads."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
import yaml

from accel_ci.relay.allowlist import read_allowlist
from accel_ci.relay.server.settings import load_relay
from accel_ci_tests.fixtures.checkout import ROOT

FOLDER = ROOT / "deploy" / "kubernetes" / "relay"
LABEL = {"app.kubernetes.io/name": "accel-ci-relay"}
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
OBJECTS: dict[str, Any] = {
    one["kind"]: one
    for name in KUSTOMIZATION["resources"]
    for one in yaml.safe_load_all((FOLDER / name).read_text())
}  # fmt: skip
POD = OBJECTS["Deployment"]["spec"]["template"]
SERVER = POD["spec"]["containers"][0]
SECRETS = ("webhook-secret", "token", "database-url", "s3-key", "s3-secret")


def test_the_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need exactly the variables that the pod has from the secret."""
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    assert generated["files"] == ["relay.yaml", "allowlist.yml"]
    project = load_relay(FOLDER / "relay.yaml")
    given = {one["name"]: one["valueFrom"]["secretKeyRef"]["key"] for one in SERVER["env"] if "valueFrom" in one}
    assert tuple(given.values()) == SECRETS
    for name, key in given.items():
        monkeypatch.setenv(name, f"secret-from-{key}")
    assert project.webhook_secret() == b"secret-from-webhook-secret"
    assert project.token() == "secret-from-token"
    assert project.database_url() == "secret-from-database-url"
    assert read_allowlist(project.allowlist).downstreams == ()
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= given.keys()


def test_the_server_is_where_it_is_looked_for() -> None:
    project = load_relay(FOLDER / "relay.yaml")
    host, _, port = project.settings.listen.rpartition(":")
    assert host == "0.0.0.0"
    (named,) = SERVER["ports"]
    assert named == {"name": "http", "containerPort": int(port)}
    assert SERVER["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert SERVER["livenessProbe"]["tcpSocket"] == {"port": "http"}
    (of_service,) = OBJECTS["Service"]["spec"]["ports"]
    assert of_service == {"name": "http", "port": int(port), "targetPort": "http"}
    assert [rule["ports"] for rule in OBJECTS["NetworkPolicy"]["spec"]["ingress"]] == [
        [{"protocol": "TCP", "port": int(port)}]
    ]
    mounted = {one["mountPath"] for one in SERVER["volumeMounts"]}
    assert SERVER["command"] == ["accel-ci", "relay", "serve", "--config", "/relay/relay.yaml"]
    assert mounted == {"/relay", "/data"}
    assert project.settings.results.bucket is not None
    assert {str(folder.parent) for folder in (project.results_folder, project.pages_folder)} == {"/data"}


def test_everything_is_about_the_same_pods() -> None:
    assert LABEL.items() <= POD["metadata"]["labels"].items()
    selectors = [
        OBJECTS["Deployment"]["spec"]["selector"]["matchLabels"],
        OBJECTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        OBJECTS["Service"]["spec"]["selector"],
        OBJECTS["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        *(one["labelSelector"]["matchLabels"] for one in POD["spec"]["topologySpreadConstraints"]),
    ]
    assert selectors == [LABEL] * 6


def test_one_of_two_servers_stays() -> None:
    replicas = OBJECTS["Deployment"]["spec"]["replicas"]
    assert replicas == 2
    assert OBJECTS["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert OBJECTS["PodDisruptionBudget"]["spec"]["minAvailable"] == replicas - 1


def test_a_server_has_the_time_to_finish() -> None:
    settings = load_relay(FOLDER / "relay.yaml").settings
    under_way = (settings.webhook.request_s + 5) + max(settings.fan_out.timeout_s, settings.forwards.timeout_s)
    assert SERVER["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "5"]
    assert POD["spec"]["terminationGracePeriodSeconds"] > 5 + under_way


def test_the_outside_reaches_no_other_paths() -> None:
    (rule,) = OBJECTS["Ingress"]["spec"]["rules"]
    assert {(one["path"], one["pathType"]) for one in rule["http"]["paths"]} == {
        ("/github/webhook", "Exact"),
        ("/github/callback", "Exact"),
        ("/hud/", "Prefix"),
    }
    limit = OBJECTS["Ingress"]["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-body-size"]
    assert int(limit.removesuffix("m")) << 20 == load_relay(FOLDER / "relay.yaml").settings.webhook.body_bytes


def test_the_pod_may_do_nothing_else() -> None:
    assert POD["spec"]["automountServiceAccountToken"] is False
    assert SERVER["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert POD["spec"]["securityContext"]["runAsNonRoot"] is True


def test_kustomize_puts_them_together() -> None:
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("no kubectl")
    done = subprocess.run([kubectl, "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    made = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    assert made.keys() == OBJECTS.keys() | {"ConfigMap"}
    volumes = {one["name"]: one for one in made["Deployment"]["spec"]["template"]["spec"]["volumes"]}
    assert volumes["settings"]["configMap"]["name"] == made["ConfigMap"]["metadata"]["name"]
    assert made["ConfigMap"]["data"]["relay.yaml"] == (FOLDER / "relay.yaml").read_text()
