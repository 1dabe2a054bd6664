"""Fixtures: the runner's zipapp, and one worker that runs a plan written by the test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from accel_ci.pool.runner_package import build_runner
from accel_ci.process.environment import clean_environment
from accel_ci.rounds.folder_round import FolderRound
from accel_ci.rounds.worker_channels import WorkerChannels
from accel_ci_tests.fixtures.events import Work

LIMITS = {"test_timeout_s": 60.0, "silence_s": 120.0, "startup_s": 60.0, "probe_timeout_s": 60.0}


def files_of(batches: Sequence[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(tests[0].partition("::")[0] for tests in batches))


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_runner(tmp_path_factory.mktemp("runner") / "runner.pyz")


@pytest.fixture
def work(runner: Path, root: Path, tmp_path: Path) -> Work:
    """Run one worker on batches given as lists of tests; return its events. Its log is `tmp_path / "worker.log"`."""

    def _work(
        *batches: Sequence[str],
        probe: Sequence[str] = (),
        pytest_args: Sequence[str] = (),
        suites: Sequence[str] = ("suite",),
        modes: Sequence[dict[str, Any]] = (),
        status: int = 0,
        **limits: float,
    ) -> list[dict[str, Any]]:
        folder = tmp_path / "round"
        for name in ("claims", "requeued", "workers", "rooms/w0-0"):
            (folder / name).mkdir(parents=True)
        plan = {
            "round": 1,
            "root": str(root),
            "suites": {
                suite: {"paths": files_of(each), "pytest_args": list(pytest_args), "modes": list(modes)}
                for place, suite in enumerate(suites)
                if (each := [tests for number, tests in enumerate(batches) if number % len(suites) == place])
            },
            "probe": list(probe),
            "limits": {**LIMITS, **limits},
            "batches": [
                {
                    "id": f"b{number}",
                    "suite": suites[number % len(suites)],
                    "file": tests[0].split("::")[0],
                    "tests": list(tests),
                    "estimate_s": 1.0,
                    "avoid_cards": [],
                    "urgent": False,
                }
                for number, tests in enumerate(batches)
            ],
        }
        (folder / "plan.json").write_text(json.dumps(plan), "utf-8")
        record = FolderRound(folder)
        record.end()
        channels = WorkerChannels(record)
        with channels.pair("w0-0") as driver:
            done = subprocess.run(
                [
                    *(sys.executable, str(runner), "work", "--plan", str(folder / "plan.json"), "--worker", "w0-0"),
                    *("--scratch", str(folder / "rooms" / "w0-0"), "--driver", str(driver.fileno()), "--card", "card:0"),
                ],
                env=clean_environment({}),
                capture_output=True,
                timeout=120,
                check=False,
                pass_fds=[driver.fileno()],
            )
        channels.finish("w0-0")
        channels.close()
        (tmp_path / "worker.log").write_bytes(done.stderr)
        assert done.returncode == status, done.stderr.decode()
        lines = (folder / "workers" / "w0-0" / "events.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    return _work
