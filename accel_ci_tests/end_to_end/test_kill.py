"""A run continues where it stopped, even when its command was killed."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from filelock import FileLock

from accel_ci.defs.instance import open_instance
from accel_ci.ledger.status import read_status
from accel_ci.model import Build
from accel_ci.pipelines import INTEGRATION
from accel_ci.results.store import ResultsStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.suite import streamed
from accel_ci_tests.fixtures.toy_night import make_toy_night

COUNT = 40
TESTS = {
    "backend/tests/smoke/test_smoke.py": "def test_smoke():\n    pass\n",
    "backend/tests/unit/test_unit.py": f"""
import pytest, time
@pytest.mark.parametrize("n", range({COUNT}))
def test_n(n):
    time.sleep(0.2)
""",
}


def begun(stage: Path) -> dict[tuple[str, str], str]:
    """Return when each test of round 1 began, by suite and test."""
    return {(found.suite, found.test): found.started_at for found in streamed(stage) if found.round == 1}


def test_a_killed_run_continues_where_it_stopped(tmp_path: Path) -> None:
    night = make_toy_night(tmp_path, TESTS)
    home, build = night.project.home, Build("manual-killed", "py3")
    stage = home / "runs" / build.revision / build.variant / "device"
    arguments = ("run", "manual", "--name", "killed")
    with subprocess.Popen(night.command(*arguments), cwd=night.folder, env=night.environment) as command:
        deadline = time.monotonic() + 240
        while len(begun(stage)) < 5:
            assert time.monotonic() < deadline, "no attempt was streamed"
            assert command.poll() is None
            time.sleep(0.02)
        command.kill()
    kept = begun(stage)
    manifests = ManifestStore(home)
    assert read_status(manifests, build).state == "stopped at device_test_results"
    assert "attempts were carried over from the run that stopped" in night.accel_ci(*arguments)
    status = read_status(manifests, build)
    assert (status.state, status.expected, status.counts["passed"]) == ("passed", COUNT + 1, COUNT + 1)
    assert status.wall_s is not None
    assert status.overhead_s is not None
    assert 0 < status.overhead_s < status.wall_s
    results = ResultsStore(home / "results")
    [suite] = [each for each in results.suites(build=build) if each.suite == "unit"]
    rows = results.read(suite, ["test", "round", "started_at"]).to_pylist()
    stored = {("unit", row["test"]): row["started_at"].isoformat() for row in rows if row["round"] == 1}
    assert kept.items() <= stored.items(), "attempts streamed before the kill are kept and were not run again"
    assert COUNT == len(stored) > len(kept)


def test_a_run_that_waits_for_another_can_be_interrupted(tmp_path: Path) -> None:
    night = make_toy_night(tmp_path)
    build = Build("manual-waits", "py3")
    lock = ManifestStore(night.project.home).pipeline_lock_file(INTEGRATION, build)
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        command = night.start("run", "manual", "--name", "waits")
        assert command.stdout is not None
        said = iter(command.stdout.readline, b"")
        assert any(b"waiting for manual-waits~" in line for line in said)
        command.send_signal(signal.SIGINT)
        assert b"interrupted before its first step" in b"".join(said)
        assert command.wait(60) == 130
        command.stdout.close()
    assert not list(lock.parent.glob("*.json")), "no stage began"
    with open_instance(night.project) as instance:
        assert instance.get_runs() == [], "it is no run before it has the build"
