"""The quality engine at size: from a store of many builds to causes, incidents, quarantine and the report.

    python -m benchmarks.quality_store [--tests 200000] [--builds 100] [--folder PATH]

The store is made first, unless the folder has one. Each night one in 1,000 tests is flaky, and 40 are broken for ten nights.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa

from accel_ci.config.loading import load_project
from accel_ci.model import VERDICTS, Artifact, Build, Ledger, Revision, RuntimeImage, Source, SuiteSelection, TestSelection
from accel_ci.pipelines import LEDGER, RUNTIME_IMAGE, TEST_SELECTION
from accel_ci.quality.current_quarantine import update_quarantine
from accel_ci.quality.flakiness import measure
from accel_ci.quality.judgement import judge_new_builds
from accel_ci.quality.report import make_report
from accel_ci.results.rows import ATTEMPTS
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.project import write_project

CARDS = 128
NOW = datetime.now(timezone.utc).replace(hour=12, minute=0, second=0, microsecond=0)


def write_night(workspace: Workspace, names: pa.Array[Any], night: int, builds: int) -> None:
    """Lay a finished nightly on disk."""
    rng = np.random.default_rng(night)
    count = len(names)
    at = NOW - timedelta(days=(builds - night) * 29 / builds)
    key = f"nightly-{at:%Y%m%dT%H%M}"
    source = Source("repository", "HEAD", f"{night:040x}")
    workspace.manifests.add_revision(Revision(key, "nightly", at, source, Source("upstream", "HEAD", f"{night // 3:040x}")))
    build = Build(key, workspace.project.settings.variants[0].name)
    flaky = np.flatnonzero(rng.random(count) < 0.001)
    broken = np.arange(night // 10 * 50, night // 10 * 50 + 40) % count
    again = np.unique(np.concatenate([flaky, broken]))
    rows = np.concatenate([np.arange(count), again, flaky])
    rounds = np.concatenate([np.ones(count), np.full(len(again), 2), np.full(len(flaky), 3)]).astype(np.int32)
    order = np.lexsort((rounds, rows))
    rows, rounds = rows[order], rounds[order]
    is_broken = np.isin(rows, broken)
    failed = (is_broken & (rounds <= 2)) | (np.isin(rows, flaky) & (rounds == 1))
    cards = (rows * 7 + rounds * 13 + night) % CARDS
    words = np.where(is_broken, f"RuntimeError: op {night // 10} is wrong", "AssertionError: tensors are not close")
    columns: dict[str, Any] = {
        "test": names.take(pa.array(rows)),
        "round": pa.array(rounds),
        "attempt": pa.array(np.zeros(len(rows), np.int32)),
        "outcome": pa.array(np.where(failed, "failed", "passed")),
        "started_at": pa.array(np.full(len(rows), int(at.timestamp() * 1e6)), pa.int64()).cast(
            ATTEMPTS.field("started_at").type
        ),
        "duration_s": pa.array(rng.gamma(2.0, 0.3, len(rows))),
        "message": pa.array(words, mask=~failed),
        "signature": pa.array(words, mask=~failed),
        "card": pa.array((cards % 8).astype(str)),
        "host": pa.array(np.char.add("host", (cards // 8).astype(str))),
        "worker": pa.array(np.char.add("w", cards.astype(str))),
    }
    for name, value in (("revision", key), ("variant", build.variant), ("suite", "unit")):
        columns[name] = pa.array([value]).take(pa.array(np.zeros(len(rows), np.int64)))
    missing = {field.name: pa.nulls(len(rows), field.type) for field in ATTEMPTS if field.name not in columns}
    table = pa.table({field.name: (columns | missing)[field.name] for field in ATTEMPTS}, schema=ATTEMPTS)
    workspace.results.write_rows(build, at.date(), "unit", [table])
    counts = dict.fromkeys(VERDICTS, 0) | {"passed": count - len(again), "failed": len(broken), "flaky": len(flaky)}
    ledger = Ledger(build, count, counts, {"unit": counts}, (), (), 0, 1.0, 1.0, digest=str(night))
    image = RuntimeImage("venv", "python", "0" * 64, "3.11", "2.13.0", f"{night // 3:040x}", ("numpy==2",), False, 1.0)
    selection = TestSelection(Artifact("0" * 64, "selection.json", 2), (SuiteSelection("unit", count, count, {}),), 1.0)
    for stage, manifest in ((RUNTIME_IMAGE, image), (TEST_SELECTION, selection), (LEDGER, ledger)):
        workspace.manifests.write(workspace.manifests.path(stage, key, build.variant), manifest)


def judge(workspace: Workspace) -> dict[str, float]:
    """Go from the store to causes, incidents, quarantine and the report; return the seconds of each."""
    found, began = {}, time.perf_counter()

    def took(what: str) -> None:
        nonlocal began
        found[what], began = round(time.perf_counter() - began, 2), time.perf_counter()

    judge_new_builds(workspace, NOW)
    took("causes and incidents")
    update_quarantine(workspace, NOW)
    took("quarantine")
    flakiness = measure(workspace.results, NOW.date(), workspace.project.settings.quality.window_days)
    took("flakiness")
    make_report(workspace, flakiness, NOW)
    took("report")
    return {**found, "together": round(sum(found.values()), 2)}


def main() -> None:
    """Print the seconds and the memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=200_000)
    parser.add_argument("--builds", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="where the store is, or is made [default: a temporary folder]")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="quality-store-"))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "accel_ci.yaml").exists():
        write_project(folder, quality={"quarantine": {"automatic": True}})
    workspace = Workspace(load_project(folder / "accel_ci.yaml"))
    names = pa.array([f"tests/test_{n % 500:03}.py::TestOps::test_op[{n}]" for n in range(given.tests)]).sort()
    if not any(workspace.manifests.revisions()):
        began = time.perf_counter()
        for night in range(given.builds - 1):
            write_night(workspace, names, night, given.builds)
        click.echo(f"the store of {given.builds - 1} builds took {time.perf_counter() - began:.0f} s")
    click.echo(f"from the store: {judge(workspace)}")
    write_night(workspace, names, given.builds - 1, given.builds)
    click.echo(f"one more night: {judge(workspace)}")
    click.echo(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB; {folder}")


if __name__ == "__main__":
    main()
