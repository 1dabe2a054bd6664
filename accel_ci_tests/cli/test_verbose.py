"""The waits of a run, shown on the terminal with `--verbose`, and in the run as Dagster shows it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from accel_ci.config.settings import Project
from accel_ci.defs.instance import open_instance
from accel_ci.model import Build
from accel_ci.pipelines import INTEGRATION
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.processes import wait_for

WAIT = "waiting for manual-a~py3, which another run holds"


@pytest.mark.parametrize("options", [[], ["-v"]])
def test_a_wait_is_logged(
    make_project: Callable[..., Project], repository: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    project = make_project()
    lock = Workspace(project).manifests.pipeline_lock_file(INTEGRATION, Build("manual-a", "py3"))
    lock.parent.mkdir(parents=True)
    output = project.root / "output"
    command = [sys.executable, "-m", "accel_ci.cli", *options, "run", "manual", "--name", "a"]
    own = ("ACCEL_CI_CONFIG", "ACCEL_CI_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    with FileLock(lock), output.open("wb") as file, (project.root / "errors").open("wb") as errors:
        process = subprocess.Popen(command, cwd=project.root, env=environment, stdout=file, stderr=errors)
        try:
            wait_for(lambda: WAIT in output.read_text())
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
            process.wait()
    lines = [line for line in (project.root / "errors").read_text().splitlines() if WAIT in line]
    assert [line.split(" ", 2)[2].split(":")[0] for line in lines] == ["accel_ci.storage.file_lock"] * len(options)
    with open_instance(project) as instance:
        assert instance.get_runs() == [], "the run begins when its turn has come"
