"""The manifests of `deploy/kubernetes` on a real API server: it takes them, and refuses the accounts what is not theirs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from accel_ci_tests.fixtures.checkout import ROOT
from accel_ci_tests.fixtures.deployment import copy_manifests

MANIFESTS = ROOT / "deploy" / "kubernetes"
NEEDED = ("ACCEL_CI_CLUSTER_ADMIN", "ACCEL_CI_CLUSTER_KUBECTL")

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: rights}\nspec: {containers: [{name: one, image: none}]}\n"
JOB = """apiVersion: batch/v1
kind: Job
metadata: {name: rights}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: one, image: none}]}}}
"""

ALLOWED = {
    "accel-ci-dagster": (
        "get pods", "get events", "get jobs", "create job", "delete job rights --ignore-not-found",
        "delete pod rights --ignore-not-found",
    ),
    "accel-ci-run": ("get pods", "get events", "get jobs", "create job", "delete pod rights --ignore-not-found"),
    "accel-ci-public": (),
    "accel-ci-test": (),
}  # fmt: skip
"""The requests that each account may make in the namespace."""

REFUSED = {
    "accel-ci-dagster": ("get roles", "create pod", "get secrets", "get configmaps", "exec rights -- true"),
    "accel-ci-run": (
        "create pod",
        "get secrets",
        "get configmaps",
        "get serviceaccounts",
        "exec rights -- true",
        "get roles",
    ),
    "accel-ci-public": ("get pods", "get jobs", "create job", "get secrets", "get configmaps", "get events"),
    "accel-ci-test": ("get pods", "get jobs", "create job", "create pod", "get secrets", "get configmaps", "logs rights"),
}
"""Requests in the namespace that the API server has to refuse to each account; others follow for all of them."""

REFUSED_TO_ALL = ("get nodes", "get namespaces", "get pods -n kube-system", "get secrets -n kube-system", "get pods -A")


@dataclass(frozen=True)
class Namespace:
    """A namespace of a test alone, with the manifests' accounts in it; requests are the administrator's or an account's."""

    name: str

    def kubectl(self, *arguments: str, account: str | None = None, given: str = "") -> subprocess.CompletedProcess[str]:
        """Make a request."""
        program, config = (os.environ[name] for name in reversed(NEEDED))
        command = [program, "--kubeconfig", config, "-n", self.name, "--request-timeout=60s"]
        if account is not None:
            command += [f"--as=system:serviceaccount:{self.name}:{account}"]
        return subprocess.run([*command, *arguments], input=given, capture_output=True, text=True, timeout=120)

    def ask(self, account: str, request: str) -> str:
        """Make a request as an account, and return what the API server says."""
        objects = {"create pod": POD, "create job": JOB}
        if request in objects:
            done = self.kubectl("create", "-f", "-", account=account, given=objects[request])
        else:
            done = self.kubectl(*request.split(), account=account)
        return done.stderr if done.returncode else "allowed"


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        pytest.skip(f"an API server needs {', '.join(missing)}")
    made = Namespace(f"accel-ci-rights-{os.getpid()}")
    assert made.kubectl("create", "namespace", made.name).returncode == 0
    done = made.kubectl("apply", "-f", str(MANIFESTS / "base" / "service-accounts.yaml"))
    assert done.returncode == 0, done.stderr
    yield made
    made.kubectl("delete", "namespace", made.name, "--wait=false")


@pytest.mark.parametrize(("folder", "objects"), [("base", 16), ("relay", 6)])
def test_the_api_server_accepts_all_manifests(namespace: Namespace, tmp_path: Path, folder: str, objects: int) -> None:
    copy_manifests(folder, tmp_path / folder, namespace.kubectl("api-versions").stdout)
    done = namespace.kubectl("apply", "--dry-run=server", "-k", str(tmp_path / folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(server dry run)") == len(done.stdout.splitlines()) >= objects
    assert "unknown field" not in done.stderr


@pytest.mark.parametrize("account", ALLOWED)
def test_an_account_may_do_what_it_needs_and_nothing_else(namespace: Namespace, account: str) -> None:
    told = {request: namespace.ask(account, request) for request in ALLOWED[account]}
    assert {request: text for request, text in told.items() if text != "allowed"} == {}
    namespace.kubectl("delete", "jobs,pods", "--all", "--wait=true", "--grace-period=0", "--force")
    namespace.kubectl("create", "-f", "-", given=POD)  # there is something to read, to delete, and to run a command in
    told = {request: namespace.ask(account, request) for request in (*REFUSED[account], *REFUSED_TO_ALL)}
    assert {request: text for request, text in told.items() if "Forbidden" not in text and "forbidden" not in text} == {}
