"""A run continues where it stopped, even when its command was killed."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from filelock import FileLock

from accel_ci.defs.instance import open_instance
from accel_ci.model import Build
from accel_ci.pipelines import INTEGRATION
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.bench import Bench, assert_balanced, make_bench
from accel_ci_tests.fixtures.suite import streamed


def begun(stage: Path) -> dict[tuple[str, str], str]:
    """Return when each test of round 1 began, by suite and test."""
    return {(found.suite, found.test): found.started_at for found in streamed(stage) if found.round == 1}


def test_a_killed_run_continues_where_it_stopped(bench: Bench, faulty_nightly: Build) -> None:
    bench.configure(jobs__nightly__suites=["integration", "pytorch"])  # a job may do without smoke
    build = Build("manual-killed", faulty_nightly.variant)
    stage = bench.project.home / "runs" / build.revision / build.variant / "device"
    try:
        command = bench.start("run", "manual", "--name", "killed")
        deadline = time.monotonic() + 120
        while len(kept := begun(stage)) < 5:
            assert time.monotonic() < deadline, "no attempt was streamed"
            assert command.poll() is None
            time.sleep(0.02)
        command.kill()
        command.wait()
        kept = begun(stage)
        killed = bench.status(build)["state"]
        output = bench.accel_ci("run", "manual", "--name", "killed")
    finally:
        bench.configure()
    assert killed == "stopped at device_test_results"
    assert "attempts were carried over from the run that stopped" in output
    assert_balanced(bench, build)
    assert bench.status(build)["verdicts"]["not_run"] == 0
    stored = {(a.suite, a.test): a.started_at.isoformat() for a in bench.attempts(build) if a.round == 1 and a.started_at}
    assert kept.items() <= stored.items(), "attempts streamed before the kill are kept and were not run again"
    assert len(stored) > len(kept)


def test_a_run_that_waits_for_another_can_be_interrupted(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    [variant] = bench.project.settings.variants
    build = Build("manual-waits", variant.name)
    lock = ManifestStore(bench.project.home).pipeline_lock_file(INTEGRATION, build)
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        command = bench.start("run", "manual", "--name", "waits", stdout=subprocess.PIPE)
        assert command.stdout is not None
        said = iter(command.stdout.readline, b"")
        assert any(b"waiting for manual-waits~" in line for line in said)
        command.send_signal(signal.SIGINT)
        assert b"interrupted before its first step" in b"".join(said)
        assert command.wait(60) == 130
        command.stdout.close()
    assert not list(lock.parent.glob("*.json")), "no stage began"
    with open_instance(bench.project) as instance:
        assert instance.get_runs() == [], "it is no run before it has the build"
