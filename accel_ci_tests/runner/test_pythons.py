"""The runner under other Pythons: `ACCEL_CI_PYTHONS=3.9,3.10,…`, each installed by uv, with pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accel_ci.model import Batch, Limits, WorkerSpec
from accel_ci.process.environment import clean_environment
from accel_ci.rounds.driver import run_rounds
from accel_ci_tests.fixtures.ground import LOCAL_POOL
from accel_ci_tests.fixtures.suite import Write

PYTHONS = [version for version in os.environ.get("ACCEL_CI_PYTHONS", "").split(",") if version]
EXPECTED = {
    "test_version": "passed", "test_failed": "failed", "test_exit": "crashed", "test_hang": "timeout",
    "test_expected": "xfailed", "test_last": "passed",
}  # fmt: skip


@pytest.mark.skipif(
    not PYTHONS, reason="ACCEL_CI_PYTHONS is not set: other Pythons to run the runner with, such as 3.9,3.13"
)
@pytest.mark.parametrize("version", PYTHONS)
def test_the_runner_runs_under(version: str, root: Path, tmp_path: Path, write: Write) -> None:
    environment = tmp_path / "python"
    for command in (
        ["venv", "--python", version, str(environment)],
        ["pip", "install", "--python", str(environment), "pytest"],
    ):
        subprocess.run([sys.executable, "-m", "uv", *command], check=True, capture_output=True, timeout=300)
    write(
        "test_a.py",
        f"""
        import os, platform, pytest, time
        def test_version(): assert platform.python_version().startswith({version!r})
        def test_failed(): assert False
        def test_exit(): os._exit(3)
        def test_hang(): time.sleep(100)
        @pytest.mark.xfail
        def test_expected(): assert False
        def test_last(): pass
        """,
    )
    tests = tuple(f"test_a.py::{name}" for name in EXPECTED)
    spec = WorkerSpec(str(environment / "bin" / "python"), str(root), clean_environment({}), "CARD")
    batches = [Batch("b0", "suite", "test_a.py", tests, 1.0)]
    run = run_rounds(LOCAL_POOL, batches, ["0"], spec, Limits(test_timeout_s=10), tmp_path / "run", lambda *_: None, 1)
    assert {attempt.test.rpartition("::")[2]: attempt.outcome for attempt in run.attempts} == EXPECTED
