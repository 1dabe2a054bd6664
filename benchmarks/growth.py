"""The cost of years of builds: `python -m benchmarks.growth [--json] [--revisions 1500]`.

In a data folder with 1,500 revisions of 4 variants: how long `accel-ci status` takes, how long a refresh of the HUD takes,
and how much longer than in a folder with 2 revisions everything takes that a nightly of the 4 variants does beside building
and testing: the revision, its manifests, the comparisons with earlier builds, and the HUD. Each measurement is a process of
its own, the best of three, taking turns; commands are timed as whole processes, the others from the end of their imports.
The first `status`, which makes the index, and `prune --dry-run` have no goal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from rich.console import Console
from rich.table import Table

from accel_ci.config.loading import load_project
from accel_ci.config.settings import Project
from accel_ci.defs.instance import open_instance
from accel_ci.defs.partitions import REVISIONS
from accel_ci.defs.quality import refresh_hud
from accel_ci.defs.triggers import builds_of, start_revision, tonights_revision
from accel_ci.ledger.status import read_status
from accel_ci.model import (
    VERDICTS,
    Artifact,
    Build,
    CardReport,
    CheckResult,
    DeviceTestResults,
    Ledger,
    Revision,
    RoundReport,
    RuntimeImage,
    Source,
    SuiteSelection,
    TestPlan,
    TestSelection,
    Wheel,
)
from accel_ci.pipelines import INTEGRATION, LEDGER
from accel_ci.quality.flakiness import Flakiness
from accel_ci.results.rows import from_report
from accel_ci.storage.manifests import PipelineRun
from accel_ci.workspace import Workspace

GOALS = {"status": 1.0, "hud refresh": 2.0, "nightly growth": 0.5}
"""Seconds."""

VARIANTS = 4
TESTS = 700
RECENT = timedelta(days=70)
"""The time for which the HUD may look back at attempts."""

TURNS = 3
TONIGHT = datetime(2026, 11, 28, 2, 0, tzinfo=timezone.utc)
_RUN = """
import atexit, runpy, sys
peak, module = sys.argv[1:3]
status = lambda: next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
atexit.register(lambda: open(peak, "w").write(status()))
sys.argv = [module, *sys.argv[3:]]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Runs a module and leaves its peak memory in kB in a file: what `wait4` tells has the memory of this process in it."""

_COMMANDS = ("status", "prune --dry-run")


@dataclass(frozen=True)
class Measured:
    """A process: seconds by the clock, those of the processor with its start, and its peak memory."""

    seconds: float
    processor_s: float
    peak_mb: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and give an exit code: 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--revisions", type=int, default=1500, help="how many revisions the data folder has")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.part:
        _measure_part(*options.part)
        return 0
    with tempfile.TemporaryDirectory(prefix="accel-ci-growth-") as scratch:
        young, full = (_make_project(Path(scratch) / name) for name in ("young", "full"))
        lay_history(young, 2)
        lay_history(full, options.revisions)
        (full.home / "builds" / ".index").unlink(missing_ok=True)
        first = _run("status", full, 0)
        turns = [
            (*(_run(part, full, turn) for part in ("status", "hud refresh", "nightly")), _run("nightly", young, turn))
            for turn in range(TURNS)
        ]
        pruned = _run("prune --dry-run", full, 0)
    status, hud, nightly, new = (min(each, key=lambda one: one.seconds) for each in zip(*turns, strict=True))
    growth = Measured(nightly.seconds - new.seconds, nightly.processor_s - new.processor_s, nightly.peak_mb)
    found = {
        "status": status, "hud refresh": hud, "nightly growth": growth, "nightly after 2": new,
        "the first status": first, "prune --dry-run": pruned,
    }  # fmt: skip
    rows: list[dict[str, Any]] = [
        {
            "what": what, "seconds": round(one.seconds, 3), "processor_s": round(one.processor_s, 3),
            "peak_mb": round(one.peak_mb), "goal_s": GOALS.get(what),
        }
        for what, one in found.items()
    ]  # fmt: skip
    passed = all(row["goal_s"] is None or row["seconds"] < row["goal_s"] for row in rows)
    if options.json:
        machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
        sys.stdout.write(json.dumps({**machine, "revisions": options.revisions, "rows": rows, "passed": passed}) + "\n")
    else:
        table = Table(
            "", "seconds", "processor", "peak MB", "goal", title=f"{options.revisions:,} revisions of {VARIANTS} variants"
        )
        for row in rows:
            goal = f"< {row['goal_s']} s" if row["goal_s"] else ""
            table.add_row(row["what"], f"{row['seconds']:.3f}", f"{row['processor_s']:.3f}", str(row["peak_mb"]), goal)
        Console().print(table)
    return int(not passed)


def lay_history(project: Project, revisions: int) -> None:
    """Fill a data folder with nightlies, one a day until the night before, each with all that a finished build has."""
    workspace = Workspace(project)
    artifact = workspace.artifacts.put_bytes(b"[]", "artifact.json")
    keys = []
    for day in range(revisions, 0, -1):
        created, sha = TONIGHT - timedelta(days=day), f"{day:040x}"
        source = Source("repository", "HEAD", sha)
        revision = Revision(f"nightly-{created:%Y%m%d}", "nightly", created, source, source)
        workspace.manifests.add_revision(revision)
        keys.append(revision.key)
        for build in builds_of(project.settings, INTEGRATION.job_for("nightly"), revision):
            _lay_build(workspace, build, created, artifact)
    with open_instance(project) as instance:
        for start in range(0, len(keys), 500):
            instance.add_dynamic_partitions(str(REVISIONS.name), keys[start : start + 500])


def _lay_build(workspace: Workspace, build: Build, at: datetime, artifact: Artifact) -> None:
    manifests = workspace.manifests
    if TONIGHT - at > RECENT:  # it is enough that they lie there
        name = f"day={at:%Y-%m-%d}/{build.name}~pytorch.parquet"
        workspace.results.objects.put(name, pa.py_buffer(b"attempts"))
    else:
        _store_attempts(workspace, build, at)
    for stage, value in _manifests_of(build, artifact).items():
        manifests.write(manifests.path(stage, build.revision, build.variant), value)
    manifests.write(manifests.run_file(INTEGRATION, build), PipelineRun("run", at, at + timedelta(hours=1)))


def _store_attempts(workspace: Workspace, build: Build, at: datetime) -> None:
    tests = [f"tests/test_ops.py::test_{number}" for number in range(TESTS)]
    outcomes = ["failed" if number % 100 == 0 else "passed" for number in range(TESTS)]
    report = pa.table({"test": tests, "outcome": outcomes, "duration_s": [0.5] * TESTS})
    workspace.results.write_rows(build, at.date(), "pytorch", from_report(build, "pytorch", report, at))


def _manifests_of(build: Build, artifact: Artifact) -> dict[str, Any]:
    """The manifests of a build with the sizes that they have in a real one."""
    checks = tuple(CheckResult(f"check-{number}", True, "nothing found") for number in range(8))
    cards = tuple(CardReport(f"card{number}", True, None, 90, 300.0, 9.0) for number in range(8))
    rounds = (RoundReport(1, 700, 8, 300.0, 280.0), RoundReport(2, 12, 8, 20.0, 9.0))
    results = DeviceTestResults(artifact, ("pytorch",), {"passed": 700}, rounds, cards, 320.0, 290.0, 2400.0)
    counts = dict.fromkeys(VERDICTS, 0) | {"passed": 690, "skipped": 10}
    return {
        "wheel": Wheel("toy", "1.0", artifact, artifact, checks, False, 60.0),
        "runtime_image": RuntimeImage(
            "venv", "/venv/bin/python", "0" * 64, "3.11.9", "2.13.0", "a" * 40,
            tuple(f"package-{number}==1.{number}" for number in range(60)), False, 30.0,
        ),
        "smoke_results": replace(results, cards=cards[:1], rounds=rounds[:1]),
        "test_selection": TestSelection(artifact, (SuiteSelection("pytorch", 31_000, 700, {"not here": 30_300}),), 40.0),
        "test_plan": TestPlan(artifact, 38, 700, 12, 8, 600.0, 290.0),
        "device_test_results": results,
        LEDGER: Ledger(build, 700, counts, {"pytorch": counts}, (), (), 0, 320.0, 290.0),
    }  # fmt: skip


def _make_project(folder: Path) -> Project:
    folder.mkdir()
    repository = folder / "repository"
    identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@example.com"]
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    (repository / "pyproject.toml").write_text("[project]\n")
    subprocess.run(["git", "add", "."], cwd=repository, check=True)
    subprocess.run(["git", *identity, "commit", "--quiet", "--message", "first"], cwd=repository, check=True)
    job = {"cron": "0 2 * * *", "suites": ["pytorch"]}
    document = {
        "backend": {"name": "toy", "distribution": "toy", "import_name": "toy", "repository": "repository"},
        "upstream": {"repository": "repository", "ref": "HEAD"},
        "variants": [
            {"name": f"py3.1{number}", "python": "3.11", "torch": "torch", "runtime": "none"} for number in range(VARIANTS)
        ],
        "suites": {"pytorch": {"paths": ["tests"]}},
        "pool": {"cards": 8, "card_environment": "CARD"},
        "jobs": {"nightly": job, "intraday": job, "main": {"suites": ["pytorch"]}, "pr": {"suites": ["pytorch"]}},
    }
    (folder / "accel_ci.yaml").write_text(yaml.safe_dump(document))
    return load_project(folder / "accel_ci.yaml")


def _run(part: str, project: Project, turn: int) -> Measured:
    """Measure a part in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in ("ACCEL_CI_HOME", "DAGSTER_HOME")}
    arguments = ["benchmarks.growth", "--part", part, str(project.config_path), str(turn)]
    if part in _COMMANDS:
        arguments = ["accel_ci.cli", "--config", str(project.config_path), *part.split()]
    with tempfile.NamedTemporaryFile() as peak, tempfile.TemporaryFile() as output:
        started = time.monotonic()
        process = subprocess.Popen([sys.executable, "-c", _RUN, peak.name, *arguments], env=environment, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(f"{part} ended with {process.returncode}")
        output.seek(0)
        seconds = seconds if part in _COMMANDS else float(output.read())
        return Measured(seconds, usage.ru_utime + usage.ru_stime, int(peak.read()) / 1024)


def _measure_part(part: str, config: str, turn: str) -> None:
    """Measure a part in this process and print it."""
    project = load_project(Path(config))
    with contextlib.redirect_stdout(sys.stderr):
        started = time.monotonic()
        if part == "nightly":
            _night(project, TONIGHT + timedelta(days=int(turn)))
        else:
            refresh_hud(Workspace(project), Flakiness(30, 0, ()))
        seconds = time.monotonic() - started
    sys.stdout.write(f"{seconds}\n")


def _night(project: Project, now: datetime) -> None:
    """Do the work of a nightly apart from building and testing, for every variant."""
    workspace = Workspace(project)
    manifests = workspace.manifests
    artifact = workspace.artifacts.put_bytes(b"[]", "artifact.json")
    with open_instance(project) as instance:
        revision = start_revision(instance, workspace, "nightly", now=now)
    if tonights_revision(workspace.manifests, now) != revision:
        raise RuntimeError("tonight's revision is another")
    for build in builds_of(project.settings, INTEGRATION.job_for("nightly"), revision):
        for stage, value in _manifests_of(build, artifact).items():
            manifests.begin(stage, build)
            if stage in ("test_plan", LEDGER):  # what the plan and the ledger's check compare with
                manifests.previous("device_test_results", build, DeviceTestResults)
            if stage == LEDGER:
                manifests.previous("test_selection", build, TestSelection)
            if stage == "device_test_results":
                _store_attempts(workspace, build, now)
            manifests.write(manifests.path(stage, build.revision, build.variant), value)
        read_status(manifests, build)
        refresh_hud(workspace, Flakiness(30, 0, ()))


if __name__ == "__main__":
    sys.exit(main())
