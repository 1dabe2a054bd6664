"""Whole nightlies of the example backend, run for real by the command line in a data folder of their own.

A run costs most of a minute, so the tests of this folder share a few of them. The op suite is cut down.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from accel_ci.config.loading import load_project
from accel_ci.config.settings import Project
from accel_ci.model import Attempt, Build, DeviceTestResults, Ledger, TestVerdict
from accel_ci.results.open import open_results
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.conftest import ROOT, commit, git
from accel_ci_tests.fixtures.stored_attempts import all_verdicts, to_attempts

OPS = ["add", "sub", "mul", "div", "atan2", "tan", "erfinv", "sin", "cos", "exp", "log", "sqrt", "to_sparse", "c*", "l*"]
"""`to_sparse` fails for real: the device has no sparse tensors."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of each fixture pays for a whole run, which on a busy machine takes minutes."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(1800))


@dataclass(frozen=True)
class Bench:
    """A project on disk and the means to run the command line on it."""

    folder: Path

    @property
    def project(self) -> Project:
        """The project as the command line reads it."""
        return load_project(self.folder / "accel_ci.yaml")

    def configure(self, **changes: Any) -> None:
        """Write the configuration: the example's, with sections changed."""
        document = yaml.safe_load((ROOT / "accel_ci.yaml").read_text())
        document["backend"]["repository"] = str(self.folder / "backend")
        document["backend"]["subdirectory"] = "."
        document["upstream"] = {"repository": str(self.folder / "upstream"), "ref": "refs/heads/main"}
        document["jobs"]["nightly"]["suites"] = ["smoke", "integration", "pytorch"]  # one of the two cards goes bad here
        document["limits"] = {"test_timeout_seconds": 120}
        document["suites"]["pytorch"]["scope"]["include"] = [f"*::test_op[{op}]" for op in OPS]
        document["pool"]["environment"]["EMU_STATE_DIR"] = str(self.folder / "state")
        for path, value in changes.items():
            *parents, last = path.split("__")
            target = document
            for parent in parents:
                target = target[int(parent) if parent.isdigit() else parent]
            target[int(last) if last.isdigit() else last] = value
        (self.folder / "accel_ci.yaml").write_text(yaml.safe_dump(document, sort_keys=False))

    def accel_ci(self, *arguments: str, status: int = 0) -> str:
        """Run the command line; its output. Fails the test when the exit status is another."""
        done = subprocess.run(
            [sys.executable, "-m", "accel_ci.cli", "--config", str(self.folder / "accel_ci.yaml"), *arguments],
            capture_output=True,
            text=True,
            timeout=900,
            cwd=self.folder,
            env=self.environment,
        )
        output = done.stdout + done.stderr
        assert done.returncode == status, output
        assert str(ROOT / "accel_ci") not in output, "a traceback of ours is no answer"
        return output

    def start(self, *arguments: str, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start the command line and go on; the caller ends it."""
        return subprocess.Popen(
            [sys.executable, "-m", "accel_ci.cli", "--config", str(self.folder / "accel_ci.yaml"), *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of commands: nothing of a data folder or an instance that the caller may have."""
        own = ("ACCEL_CI_CONFIG", "ACCEL_CI_HOME", "DAGSTER_HOME")
        return {name: value for name, value in os.environ.items() if name not in own}

    def ledger(self, build: Build) -> Ledger:
        """The ledger of a build."""
        ledger: Ledger = self._manifest("ledger", build, Ledger)
        return ledger

    def results(self, build: Build) -> DeviceTestResults:
        """The device test results of a build."""
        results: DeviceTestResults = self._manifest("device_test_results", build, DeviceTestResults)
        return results

    def verdicts(self, build: Build) -> dict[str, TestVerdict]:
        """The verdicts of a build by the last part of the test's name."""
        found = all_verdicts(open_results(self.project), build)
        return {verdict.test.rpartition("::")[2]: verdict for verdict in found}

    def attempts(self, build: Build) -> list[Attempt]:
        """All device attempts of a build."""
        store, suites = open_results(self.project), self.results(build).suites
        return [
            attempt
            for stored in store.suites(build=build)
            if stored.suite in suites
            for attempt in to_attempts(store.read(stored))
        ]

    def status(self, build: Build) -> dict[str, Any]:
        """`accel-ci status --json`."""
        return json.loads(self.accel_ci("status", build.name, "--json"))  # type: ignore[no-any-return]

    def _manifest(self, asset: str, build: Build, kind: type[Any]) -> Any:
        manifests = ManifestStore(self.project.home)
        return manifests.read(manifests.path(asset, build.revision, build.variant), kind)


class Server:
    """A process that serves Dagster's GraphQL on loopback, asked as the browser does."""

    def __init__(self, command: list[str], port: int, folder: Path, environment: dict[str, str]) -> None:
        """Start the process and wait until it answers."""
        self._url = f"http://127.0.0.1:{port}"
        self._log = folder / "server.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        self.wait_for(self._answers)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log
        try:
            return httpx.get(f"{self._url}/server_info", timeout=5).is_success
        except httpx.HTTPError:
            return False

    @property
    def log(self) -> str:
        """What the process has printed."""
        return self._log.read_text(errors="replace")

    def ask(self, question: str, **variables: Any) -> Any:
        """The data of an answer; errors fail the test."""
        body = {"query": question, "variables": variables}
        answer = httpx.post(f"{self._url}/graphql", json=body, timeout=60).json()
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def wait_for(self, condition: Callable[[], Any], seconds: float = 600) -> Any:
        """What `condition` gives once it is true."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, self.log
            time.sleep(0.25)
        return found

    def stop(self) -> None:
        """End the process and those that it started."""
        os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Finds a port that nobody listens on."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    return find


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A project with the example backend in a repository of its own, and an upstream repository."""
    return make_bench(tmp_path_factory.mktemp("nightly"))


def make_bench(folder: Path) -> Bench:
    """A project in a folder: see `bench`."""
    for name in ("backend", "upstream"):
        (folder / name).mkdir()
        git(folder / name, "init", "--quiet")
    example = ROOT / "examples" / "emu_backend"
    listed = git(example, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    commit(folder / "backend", {name: (example / name).read_text() for name in listed if (example / name).is_file()})
    for script in (folder / "backend").glob("shim/*.sh"):
        script.chmod(0o755)
    commit(folder / "backend", {}, "scripts can be run")
    commit(folder / "upstream", {"version.txt": "1\n"})
    bench = Bench(folder)
    bench.configure()
    return bench


@pytest.fixture(scope="session")
def faulty_nightly(bench: Bench) -> Build:
    """A finished nightly in which one op is flaky, one crashes, and one hangs."""
    faults = "flaky:atan2,crash:tan,hang:erfinv"
    bench.configure(pool__environment__EMU_FAULTS=faults, limits__test_timeout_seconds=25)
    output = bench.accel_ci("run", "nightly")
    bench.configure()
    assert "index.html" in output
    [build] = ManifestStore(bench.project.home).list_builds()
    return build


@pytest.fixture(scope="session")
def bad_card_run(bench: Bench, faulty_nightly: Build) -> Build:
    """A finished build in which card 1 goes bad after its first kernels."""
    bench.configure(pool__environment__EMU_FAULTS="bad_card:1@5")
    bench.accel_ci("run", "manual", "--name", "bad card", "--strict", status=1)  # to_sparse fails for real
    bench.configure()
    return Build("manual-bad-card", faulty_nightly.variant)
