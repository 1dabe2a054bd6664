"""A stranger's pull request: its deviceless suites run before a maintainer's label, without a card and without secrets."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from filelock import FileLock

from accel_ci.config.loading import load_project
from accel_ci.defs.assembly import build_definitions
from accel_ci.defs.run_tags import STRANGER_TAG
from accel_ci.defs.runs import create_run
from accel_ci.docker.client import ask_docker, run_docker
from accel_ci.github.client import TOKEN as TOKEN_NAME
from accel_ci.hud.gather import gather_builds
from accel_ci.model import Build, DeviceTestResults, Ledger, RuntimeImage
from accel_ci.pipelines import DEVICELESS_RESULTS, LEDGER, RUNTIME_IMAGE, WHEEL
from accel_ci.pool.choose_pool import worker_spec_for
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.job import PROJECT_LABEL
from accel_ci.pull_requests.publish import publish_answers
from accel_ci.pull_requests.watched import read_watched
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.bucket_pool import round_store
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.cluster_pool import cluster_settings, gate_for_pods
from accel_ci_tests.fixtures.github_server import TOKEN, GitHubServer, github_server
from accel_ci_tests.fixtures.project import minimal_config
from accel_ci_tests.fixtures.toy_backend import SETUP
from accel_ci_tests.fixtures.toy_night import TESTS, ToyNight, make_toy_night

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root can run code as another user"),
    pytest.mark.timeout(900),
]

LABEL, SECRET = "ciflow/toy", "fakePassedZq8Lm3"
TRUSTED, STRANGERS = 23456, 23457
LOOK = """
import json, os, pathlib, uuid


def look(what):
    seen = {"what": what, "user": os.getuid(), "environment": dict(os.environ), "read": []}
    pid = os.getpid()
    while pid > 1:
        try:
            seen["read"].append(pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace"))
        except OSError:
            pass
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    pathlib.Path(r"SEEN", f"{what}-{uuid.uuid4().hex}.json").write_text(json.dumps(seen))


"""
IN_A_POD = f"""
import os
from pathlib import Path


def look():
    seen = [str(dict(os.environ))]
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            seen.append(path.read_text(errors="replace"))
        except OSError:
            pass
    text = " ".join(seen)
    assert "{SECRET}" not in text
    assert "{TOKEN}" not in text
    assert "X-Amz-Signature" not in text
    assert os.getuid() == 1000
    assert not Path("/cache").exists()
    assert not Path("/var/run/secrets").exists()


def test_look():
    look()
    assert not os.access(__file__, os.W_OK)


if __name__ == "__main__":
    look()
"""
NAMES = ["lint", "emulated", "smoke", "unit"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody can reach, with one to which everybody can write."""
    made = Path(tempfile.mkdtemp(prefix="accel-ci-strangers-"))
    made.chmod(0o755)
    (made / "seen").mkdir()
    (made / "seen").chmod(0o777)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def github() -> Iterator[GitHubServer]:
    with github_server() as server:
        yield server


@pytest.fixture
def night(folder: Path, github: GitHubServer, monkeypatch: pytest.MonkeyPatch) -> ToyNight:
    found = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin:/bin")
    if found is None:
        pytest.skip("this needs a Python that other users can start, in /usr/local/bin or /usr/bin")
    look = LOOK.replace("SEEN", str(folder / "seen"))
    files = {
        "backend/setup.py": f"{look}look('build')\n{SETUP}",
        "backend/tests/emulated/test_emulated.py": f"{look}def test_look(): look('emulated')\n",
        "backend/tests/smoke/test_smoke.py": TESTS["backend/tests/smoke/test_smoke.py"],
        "backend/tests/unit/test_unit.py": f"{look}def test_look(): look('unit')\n",
    }
    job = {"cron": "0 2 * * *", "suites": NAMES}
    made = make_toy_night(
        folder,
        files,
        suites={
            "lint": {"stage": "deviceless", "commands": [["python", "-c", "import toy_backend"]]},
            "emulated": {"stage": "deviceless", "paths": ["tests/emulated"]},
            "smoke": {"stage": "smoke", "paths": ["tests/smoke"]},
            "unit": {"paths": ["tests/unit"]},
        },
        jobs={"nightly": job, "intraday": job, "main": {"suites": NAMES}, "pr": {"suites": NAMES}},
        pool={"card_environment": "TOY_CARD", "user": str(TRUSTED), "pass_environment": ["PASSED"]},
        wheels={"pass_environment": ["PASSED"]},
        github={"repository": "org/backend", "api": github.url},
        pull_requests={
            "labels": [LABEL], "blocking": True, "strangers": "deviceless", "strangers_user": str(STRANGERS)
        },
    )  # fmt: skip
    monkeypatch.setenv(TOKEN_NAME, TOKEN)
    monkeypatch.setenv("PASSED", SECRET)
    monkeypatch.setenv("PATH", f"{Path(found).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PIP_FIND_LINKS", made.environment["PIP_FIND_LINKS"])
    return made


class Host:
    """The project with its sensors, on an instance."""

    def __init__(self, night: ToyNight, instance: dg.DagsterInstance) -> None:
        self.project, self.instance = load_project(night.project.config_path), instance
        self.workspace = Workspace(self.project)
        self.definitions = build_definitions(self.project, in_process=True)

    def tick(self) -> list[Any]:
        """Return the runs that a tick of the sensor asks for."""
        repository = self.definitions.get_repository_def()
        context = dg.build_sensor_context(
            instance=self.instance, instance_ref=self.instance.get_ref(), repository_def=repository
        )
        context._log_key = ["a", "pull_requests_sensor", "1"]
        return list(repository.get_sensor_def("pull_requests_sensor").evaluate_tick(context).run_requests or ())

    def run(self, request: Any) -> bool:
        """Run what a tick asks for, as the daemon does, and return whether it ended well."""
        job, build = self.definitions.resolve_job_def(request.job_name), Build(*request.partition_key.split("|"))
        names = [key.path[-1] for key in request.asset_selection or ()]
        run = create_run(self.instance, None, job, build, request.tags, assets=names)
        return execute_run(InMemoryJob(job), run, self.instance).success


@pytest.fixture
def host(night: ToyNight, folder: Path) -> Iterator[Host]:
    (folder / "instance").mkdir()
    with dg.DagsterInstance.local_temp(str(folder / "instance")) as instance:
        yield Host(night, instance)


def seen(folder: Path, what: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (folder / "seen").glob(f"{what}-*.json")]


def test_a_strangers_code_is_tested_without_cards_and_secrets_before_the_label(
    night: ToyNight, host: Host, github: GitHubServer, folder: Path
) -> None:
    repository = folder / "repository"
    sha = commit(repository, {"backend/README.md": "# A stranger\n"})
    git(repository, "update-ref", "refs/pull/4/head", sha)
    github.pulls.open(4, sha, fork="stranger/backend", author="stranger")

    [request] = host.tick()
    assert request.tags[STRANGER_TAG] == "true"
    assert [key.path[-1] for key in request.asset_selection] == [WHEEL, RUNTIME_IMAGE, DEVICELESS_RESULTS]
    with FileLock(host.workspace.cards_lock):  # no run could have a card now
        assert host.run(request)
    assert host.tick() == [], "it waits for the label"
    looks = [*seen(folder, "build"), *seen(folder, "emulated")]
    assert {look["what"] for look in looks} == {"build", "emulated"}
    assert {look["user"] for look in looks} == {STRANGERS}
    text = json.dumps(looks)
    assert SECRET not in text
    assert TOKEN not in text
    assert {look["environment"]["TOY_CARD"] for look in looks if look["what"] == "emulated"} == {""}

    build = Build(*request.partition_key.split("|"))
    [revision], _ = gather_builds(host.workspace, {}, datetime.now(timezone.utc))
    [summary] = revision.builds
    state = summary.state
    assert (summary.build, state.words, state.detail) == (
        build,
        "waits for a maintainer's label",
        f"after {DEVICELESS_RESULTS}",
    )
    publish_answers(host.workspace, datetime.now(timezone.utc))
    [check] = github.check_runs.runs.values()
    assert (check["status"], check.get("conclusion")) == ("queued", None)
    assert check["output"]["title"] == "2 deviceless tests passed; the others wait for a maintainer"
    assert f"setting {LABEL} now" in next(iter(github.pulls.comments.values()))["body"]

    github.pulls.label(4, LABEL)
    [request] = host.tick()
    assert STRANGER_TAG not in request.tags
    made = [key.path[-1] for key in request.asset_selection]
    assert made[0] == "smoke_results", "what is complete is not made again"
    assert host.run(request)
    assert host.tick() == []
    assert read_watched(host.workspace).heads[4].state == "started"
    assert len(seen(folder, "emulated")) == 1
    [look] = seen(folder, "unit")
    assert (look["user"], look["environment"]["PASSED"], look["environment"]["TOY_CARD"]) == (TRUSTED, SECRET, "0")
    ledger = host.workspace.manifests.find(LEDGER, build, Ledger)
    assert ledger is not None
    assert list(ledger.suites) == NAMES
    publish_answers(host.workspace, datetime.now(timezone.utc))
    [check] = github.check_runs.runs.values()
    assert (check["conclusion"], check["output"]["title"]) == ("success", "4 tests passed or were excused")


@pytest.fixture
def pods_and_images(base: str) -> Iterator[dict[str, Any]]:
    """Sections for pods with a network of their own, of a template with secrets and a cache that the cluster does not have.

    It has no such card either: a pod that asks for any of these never begins.
    """
    settings = cluster_settings()
    store = round_store()
    worker = {
        "name": "worker",
        "envFrom": [{"secretRef": {"name": "not-there"}}],
        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
    }
    cache = {"name": "cache", "persistentVolumeClaim": {"claimName": "not-there"}}
    backend: Any = minimal_config()["backend"]
    project = f"strangers-{uuid.uuid4().hex[:8]}"
    name = f"{base.partition('/')[0]}/test-{project}"
    with gate_for_pods(str(store.endpoint)) as gate:
        bucket = {"bucket": store.bucket, "prefix": store.prefix, "endpoint": store.endpoint}
        yield {
            "backend": {**backend, "name": project, "entry_points": ["torch.backends:toy"]},
            "pool": {
                "kind": "kubernetes", "resource": "example.com/none", "nodes_on_demand": True, "queue_seconds": 120,
                "pass_environment": ["PASSED"], "environment": {"HUB_TOKEN": SECRET}, "service_account": "not-there",
                "pod_template": {"spec": {"containers": [worker], "volumes": [cache]}},
                "bucket": {**bucket, "worker_endpoint": f"http://{gate.address}"},
            },
            "wheels": {"builder": base, "pass_environment": ["PASSED"]},
            "image": {
                "base": base, "registry": name, "registry_of_pulls": f"{name}-of-pulls", "development_packages": [],
            },
        }  # fmt: skip
    assert not Cluster(settings).jobs(f"{PROJECT_LABEL}={project}")
    store.of_round(project).clear()
    names = ask_docker(["image", "ls", "--quiet", "--filter", f"reference={name}*"], "list images").split()
    run_docker(["image", "rm", "--force", *names])


def test_on_a_cluster_it_runs_in_pods_with_nothing_of_their_template(
    folder: Path, github: GitHubServer, monkeypatch: pytest.MonkeyPatch, pods_and_images: dict[str, Any]
) -> None:
    job = {"cron": "0 2 * * *", "suites": NAMES}
    suites = {
        "lint": {
            "stage": "deviceless",
            "commands": [["python", "tests/emulated/test_emulated.py"], ["pytest", "--version"]],
        },
        "emulated": {"stage": "deviceless", "paths": ["tests/emulated"]},
        "smoke": {"stage": "smoke", "paths": ["tests/smoke"]},
        "unit": {"paths": ["tests/unit"]},
    }
    files = {**TESTS, "backend/setup.py": f"{SETUP}\nassert 'PASSED' not in os.environ\n"}
    night = make_toy_night(
        folder,
        {**files, "backend/tests/emulated/test_emulated.py": IN_A_POD},
        suites=suites,
        jobs={"nightly": job, "intraday": job, "main": {"suites": NAMES}, "pr": {"suites": NAMES}},
        github={"repository": "org/backend", "api": github.url},
        pull_requests={"labels": [LABEL], "strangers": "deviceless"},
        **pods_and_images,
    )
    for name in (TOKEN_NAME, "PASSED"):
        monkeypatch.setenv(name, TOKEN if name == TOKEN_NAME else SECRET)
    monkeypatch.setenv("PIP_FIND_LINKS", night.environment["PIP_FIND_LINKS"])
    sha = commit(folder / "repository", {"backend/README.md": "# A stranger\n"})
    git(folder / "repository", "update-ref", "refs/pull/4/head", sha)
    github.pulls.open(4, sha, fork="stranger/backend", author="stranger")
    (folder / "instance").mkdir()
    with dg.DagsterInstance.local_temp(str(folder / "instance")) as instance:
        host = Host(night, instance)
        [request] = host.tick()
        assert host.run(request)
        assert host.tick() == [], "it waits for the label"
    manifests, build = host.workspace.manifests, Build(*request.partition_key.split("|"))
    results = manifests.find(DEVICELESS_RESULTS, build, DeviceTestResults)
    assert results is not None
    assert (results.suites, results.cards, results.counts) == (("lint", "emulated"), (), {"passed": 3})
    image = manifests.find(RUNTIME_IMAGE, build, RuntimeImage)
    assert image is not None
    trusted = worker_spec_for(host.project.settings, image, folder)
    assert (trusted.environment["PASSED"], trusted.environment["HUB_TOKEN"]) == (SECRET, SECRET)
