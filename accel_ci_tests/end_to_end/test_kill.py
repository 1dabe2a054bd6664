"""Nothing is lost: a run whose command is killed at once is taken up where it stopped."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from accel_ci.model import Build
from accel_ci_tests.end_to_end.conftest import Bench
from accel_ci_tests.end_to_end.test_nightly import assert_balanced


def streamed(stage: Path) -> dict[tuple[str, str], str]:
    """When each test of round 1 began, by suite and test, as its worker wrote it."""
    found: dict[tuple[str, str], str] = {}
    for file in stage.glob("round-1/workers/*/events.jsonl"):
        for line in file.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                event: dict[str, Any] = json.loads(line)
                if event["event"] == "attempt":
                    found[event["suite"], event["test"]] = event["started_at"]
    return found


def test_a_killed_run_is_taken_up_where_it_stopped(bench: Bench, faulty_nightly: Build) -> None:
    bench.configure(jobs__nightly__suites=["integration", "pytorch"])  # a job may do without smoke
    build = Build("manual-killed", faulty_nightly.variant)
    stage = bench.project.home / "runs" / build.revision / build.variant / "device"
    try:
        command = bench.start("run", "manual", "--name", "killed")
        deadline = time.monotonic() + 120
        while len(kept := streamed(stage)) < 5:
            assert time.monotonic() < deadline, "no attempt was streamed"
            assert command.poll() is None
            time.sleep(0.02)
        command.kill()
        command.wait()
        kept = streamed(stage)
        bench.accel_ci("run", "manual", "--name", "killed")
    finally:
        bench.configure()
    assert_balanced(bench, build)
    assert bench.status(build)["verdicts"]["not_run"] == 0
    stored = {(a.suite, a.test): a.started_at.isoformat() for a in bench.attempts(build) if a.round == 1 and a.started_at}
    assert kept.items() <= stored.items(), "what was streamed before the kill is kept, and was not run again"
    assert len(stored) > len(kept)
