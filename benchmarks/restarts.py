"""The cost of a crash: `python -m benchmarks.restarts [--json]`.

The operator suite of the example backend, in the image that its last nightly ran in (`make nightly` makes one), with a file
of tests that end their process beside it. One worker runs that file with copies of the process that has collected the suite,
and without: then each crash costs an import of PyTorch and another collection. The same file without crashes is subtracted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from accel_ci.config.loading import load_project
from accel_ci.model import Batch, Limits, SuiteSession, WorkerSpec
from accel_ci.pool.choose_pool import worker_spec_for
from accel_ci.rounds.driver import run_rounds
from benchmarks.runner import PATH, POOL, newest_image

CRASHES = 10
_FILE = f"{PATH}/test_crashes.py"
_TESTS = f"""
import os, pytest
@pytest.mark.parametrize("n", range({CRASHES}))
def test_crash(n): os.environ["CRASHES"] == "0" or os.kill(os.getpid(), 9)
def test_last(): pass  # so that all sessions end alike
"""


def seconds(spec: WorkerSpec, folder: Path, *, crashes: bool, copies: bool) -> float:
    """Return the wall seconds of one worker for the whole file."""
    environment = {**spec.environment, "CRASHES": str(int(crashes))}
    sessions = {"op": SuiteSession((PATH,), (), copies)}
    tests = (*(f"{_FILE}::test_crash[{number}]" for number in range(CRASHES)), f"{_FILE}::test_last")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as run_dir:
        run = run_rounds(
            POOL, [Batch("b0", "op", _FILE, tests, 1.0)], ["0"], replace(spec, environment=environment, sessions=sessions),
            Limits(), Path(run_dir), lambda *_: None, 1,
        )  # fmt: skip
    expected = "crashed" if crashes else "passed"
    if [attempt.outcome for attempt in run.attempts] != [expected] * CRASHES + ["passed"]:
        sys.exit(f"the tests should all have {expected}; {run.attempts[0].message}")
    return time.monotonic() - began


def measure(folder: Path, repeats: int) -> dict[str, Any]:
    """Return the seconds per crash of both ways, as medians, and their ratio."""
    project = load_project()
    sources = folder / "sources"
    shutil.copytree(project.root / project.settings.backend.subdirectory, sources)
    (sources / _FILE).write_text(_TESTS, "utf-8")
    spec = replace(worker_spec_for(project.settings, newest_image(project), sources), probe=())
    seconds(spec, folder, crashes=False, copies=True)  # warms the caches
    found: dict[str, list[float]] = {"copied": [], "collected again": []}
    for _ in range(repeats):
        for name, copies in (("copied", True), ("collected again", False)):
            calm = seconds(spec, folder, crashes=False, copies=copies)
            found[name].append((seconds(spec, folder, crashes=True, copies=copies) - calm) / CRASHES)
    per_crash = {name: median(each) for name, each in found.items()}
    return {"crashes": CRASHES, "seconds_per_crash": per_crash, "ratio": per_crash["copied"] / per_crash["collected again"]}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print lines or JSON."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true", help="print JSON")
    arguments.add_argument("--repeats", type=int, default=3, help="how often each way runs")
    chosen = arguments.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="accel-ci-restarts-") as name:
        results = measure(Path(name), chosen.repeats)
    if chosen.json:
        sys.stdout.write(json.dumps(results, indent=1) + "\n")
    else:
        for name, each in results["seconds_per_crash"].items():
            sys.stdout.write(f"{name}: {each:.3f} s per crash\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
