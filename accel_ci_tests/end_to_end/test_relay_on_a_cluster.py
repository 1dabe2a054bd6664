"""The relay's manifests on a real cluster: two servers behind a Service, of which one is killed outright under load.

Its pods have a network of their own, and reach PostgreSQL, S3 and a stand-in for GitHub through gates. It needs the
variables of `fixtures/deployment.py`, which `ACCEL_CI_CLUSTER=1 .ci/run` sets.
"""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from accel_ci_tests.fixtures.cluster_pool import gate_for_pods
from accel_ci_tests.fixtures.deployment import NAMESPACE, NEEDED, Deployment, build_image, copy_manifests, wait_for
from accel_ci_tests.fixtures.github_server import TOKEN, Behaviour, GitHubServer, github_server
from accel_ci_tests.fixtures.postgres import empty_postgres
from accel_ci_tests.fixtures.relay_server import SECRET, UPSTREAM, headers_for, pull_request

NAME = "accel-ci-relay"
DOWNSTREAMS = ["a/quick", "a/slow"]
DELIVERIES = 12


@contextmanager
def deployed_relay(folder: Path, github: GitHubServer) -> Iterator[Deployment]:
    """Apply the manifests with an overlay as docs/deployment.md has it; wait until both servers are ready."""
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        pytest.skip(f"a deployment on a cluster needs {', '.join(missing)}")
    image = build_image(os.environ["ACCEL_CI_CLUSTER_REGISTRY"])
    with ExitStack() as until_the_end:
        database = until_the_end.enter_context(contextmanager(empty_postgres)())
        servers = (database, os.environ["ACCEL_CI_S3_ENDPOINT"], github.url)
        at = [until_the_end.enter_context(gate_for_pods(url)).address for url in servers]
        here = urlsplit(database)
        database_url = here._replace(netloc=f"{here.username}@{at[0]}").geturl()
        deployment = Deployment(
            os.environ["ACCEL_CI_CLUSTER_KUBECTL"], os.environ["ACCEL_CI_CLUSTER_ADMIN"], "", "", folder
        )  # fmt: skip
        copy_manifests("relay", folder / "relay", deployment.kubectl("api-versions"))
        _write_overlay(folder, image, database_url, f"http://{at[1]}", f"http://{at[2]}")
        deployment.kubectl("apply", "-k", str(folder))
        try:
            deployment.kubectl("rollout", "status", f"deployment/{NAME}", "--timeout=240s")
            yield deployment
        finally:
            deployment.kubectl("delete", "-k", str(folder), "--wait=true", check=False)


def _write_overlay(folder: Path, image: str, database_url: str, s3: str, github: str) -> None:
    settings = yaml.safe_load((folder / "relay" / "relay.yaml").read_text())
    settings["upstream"] = UPSTREAM
    settings["github"]["api"] = github
    settings["results"] |= {
        "bucket": os.environ["ACCEL_CI_S3_BUCKET"],
        "prefix": f"relay-{uuid.uuid4().hex}",
        "endpoint": s3,
    }
    (folder / "relay.yaml").write_text(yaml.safe_dump(settings))
    (folder / "allowlist.yml").write_text(yaml.safe_dump({"L1": DOWNSTREAMS}))
    secret = {
        "webhook-secret": SECRET, "token": TOKEN, "database-url": database_url,
        "s3-key": os.environ["ACCEL_CI_S3_ACCESS_KEY"], "s3-secret": os.environ["ACCEL_CI_S3_SECRET_KEY"],
    }  # fmt: skip
    data = {name: base64.b64encode(value.encode()).decode() for name, value in secret.items()}
    document = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME}, "data": data}
    (folder / "secret.yaml").write_text(yaml.safe_dump(document))
    name, _, tag = image.rpartition(":")
    kustomization = {
        "namespace": NAMESPACE,
        "bases": ["relay"],  # what kubectl before 1.21 takes folders as
        "resources": ["secret.yaml"],
        "configMapGenerator": [{"name": NAME, "behavior": "replace", "files": ["relay.yaml", "allowlist.yml"]}],
        "generatorOptions": {"disableNameSuffixHash": True},
        "images": [{"name": "accel-ci", "newName": name, "newTag": tag}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))


def deliver(url: str) -> str:
    """Send a webhook until one of the servers takes it, and return its id."""
    body, delivery = json.dumps(pull_request()).encode(), str(uuid.uuid4())

    def is_taken() -> bool:
        try:
            answer = httpx.post(url, content=body, headers=headers_for(body, delivery=delivery), timeout=10)
        except httpx.TransportError:  # the Service still has the address of the server that was killed
            return False
        assert answer.status_code == 202, answer.text
        return True

    wait_for("a server takes the webhook", is_taken, 120, every=0.5)
    return delivery


def test_two_servers_of_which_one_is_killed(tmp_path: Path) -> None:
    with github_server() as github, deployed_relay(tmp_path, github) as deployment:
        github.behaviours["a/slow"] = Behaviour(204, delay_s=0.5)
        service = json.loads(deployment.kubectl("get", "service", NAME, "-o", "json"))
        url = f"http://{service['spec']['clusterIP']}:8080/github/webhook"
        pods = deployment.running_pods(f"app.kubernetes.io/name={NAME}")
        assert len(pods) == 2
        sent = [deliver(url) for _ in range(DELIVERIES)]
        deployment.kubectl("delete", "pod", pods[0], "--grace-period=0", "--force", "--wait=false")
        sent += [deliver(url) for _ in range(DELIVERIES)]
        expected = {(delivery, repository) for delivery in sent for repository in DOWNSTREAMS}
        wait_for("the other server takes over", lambda: expected == set(github.taken()), 180)
        deployment.kubectl("rollout", "status", f"deployment/{NAME}", "--timeout=240s")
        left = deployment.running_pods(f"app.kubernetes.io/name={NAME}")
        assert pods[0] not in left
        logs = "".join(deployment.kubectl("logs", pod) for pod in left)
        assert SECRET not in logs
        assert TOKEN not in logs
        wrong = headers_for(b"{}") | {"X-Hub-Signature-256": "sha256=" + "0" * 64}
        assert httpx.post(url, content=b"{}", headers=wrong, timeout=10).status_code == 401
