"""The speed of the results store: `python -m benchmarks.results [--json] [--scale small|full|nightly]`.

Three questions: how long 2,000 shard reports of 500 cases, and as many lines of the runner's own, take from files to stored
rows and a balanced ledger; what one more night of a million rows costs after 1, 10 and 100 nights; and what a look-up of one
test's 90 days costs then. Each measurement is a process of its own, so that its peak memory is its own; of the first kind it
is the median of five turns.

`--scale nightly` measures the way of a nightly instead: from the events of 24 workers, through the stage that the asset
`device_test_results` runs, to stored rows and a closed ledger.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from accel_ci.config.loading import parse_settings
from accel_ci.config.settings import Project
from accel_ci.errors import AccelCiError
from accel_ci.ledger.account import account_of
from accel_ci.ledger.close import close_ledger
from accel_ci.model import (
    Build,
    Limits,
    Revision,
    RuntimeImage,
    SelectedTest,
    Source,
    SuiteSelection,
    TestPlan,
    TestSelection,
    WorkerSpec,
)
from accel_ci.pool.choose_pool import pool_for, worker_spec_for
from accel_ci.progress import LineProgress
from accel_ci.quality.flakiness import measure
from accel_ci.results.ingest import ingest
from accel_ci.results.questions import history
from accel_ci.results.rows import from_report
from accel_ci.results.store import ResultsStore
from accel_ci.steps.device_tests import plan_device_tests, read_plan, run_device_stage
from accel_ci.workspace import Workspace

FIRST_DAY = date(2026, 8, 1)
SUITE, VARIANT = "pytorch", "py3.11"
LOOK_UPS = 20
TURNS = 5
SCALES = {"small": (100_000, (1, 10)), "full": (1_000_000, (1, 10, 100))}
CASES = 500
WORKERS = 24
LINES = "runner's lines"
LINES_PER_S = 600_000
NIGHTLY_GOALS = {200_000: (2.0, 450), 1_000_000: (8.0, 1000)}
"""Attempts to seconds and MB at the most."""
GOALS = {"night_s": 15.0, "night_rss_gb": 2.0, "history_ms": 60.0, "ingest_s": 15.0}

_TESTS = """
SELECT i, 'test/test_' || (i % 400) || '.py' AS file, hash(i) % 100 AS kind,
       'test_out_warning_op_' || (i // 400) || '_privateuse1_float' || (i % 4) AS name,
       'test.test_' || (i % 400) || '.TestCommon' || (i % 37) || 'PRIVATEUSE1' AS classname
FROM range($tests) r(i)
"""
# Of the tests 4 % are shaky: 40 % of their runs fail, and then every third second attempt passes. 26 % are always skipped.
_NIGHT = """
SELECT file, classname, name, again AS attempt, to_microseconds(i * 40000 + again) + $began::TIMESTAMPTZ AS started_at,
       (hash(i, $night) % 2000) / 1000.0 AS duration_s,
       (i % 24)::VARCHAR AS card, 'host-' || (i % 6) AS host, 'w' || (i % 24) AS worker,
       CASE WHEN bad AND (again = 0 OR hash(i, $night, 2) % 3 > 0) THEN 'failed'
            WHEN kind > 73 THEN 'skipped' ELSE 'passed' END AS outcome,
       CASE WHEN outcome = 'failed'
            THEN 'AssertionError: max abs diff 0.' || (hash(i, $night, 3) % 1000) || ' in op ' || (i % 97) END AS message
FROM (SELECT *, kind < 4 AND hash(i, $night, 1) % 100 < 40 AS bad FROM tests), range(2) again(again)
WHERE again = 0 OR bad ORDER BY i, again
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and give an exit code: 1 when a goal is missed at full scale."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--scale",
        choices=(*SCALES, "nightly"),
        default="small",
        help="full: 100 nights of a million rows, some 4 GB and 10 min; nightly: from events to a ledger",
    )
    parser.add_argument("--folder", type=Path, default=Path.cwd() / "build", help="where the history is made and deleted")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.part:
        Console().print_json(json.dumps(_PARTS[options.part[0]](*options.part[1:])))
        return 0
    options.folder.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="accel-ci-benchmark-", dir=options.folder))
    try:
        if options.scale == "nightly":
            nightlies = []
            for attempts in NIGHTLY_GOALS:
                home = scratch / f"nightly-{attempts}"
                _child("lay nightly", str(home), str(attempts))  # a child's peak memory is never below its parent's
                nightlies.append(_child("nightly", str(home)))
            return _report_nightlies(nightlies, options.json)
        rows, nights = SCALES[options.scale]
        measured: dict[str, Any] = {"machine": _machine(), "scale": options.scale}
        measured["ingests"] = [_ingest(scratch, name, write, rows) for name, write in _WRITERS.items()]
        measured["nights"] = _nights(scratch, rows, nights)
    finally:
        shutil.rmtree(scratch)
    if options.json:
        Console().print_json(json.dumps(measured))
    else:
        _print(measured)
    return int(options.scale == "full" and not all(map(_met, measured["ingests"] + measured["nights"])))


def _ingest(scratch: Path, name: str, write: Callable[[Path, int], None], rows: int) -> dict[str, Any]:
    folder = scratch / name
    folder.mkdir()
    write(folder, rows)
    turns = [_child("ingest", str(scratch / f"{name}-store-{turn}"), str(folder)) for turn in range(TURNS)]
    shutil.rmtree(folder)
    return {"input": name, **sorted(turns, key=lambda turn: turn["store_s"])[TURNS // 2]}


def _write_shards(folder: Path, rows: int) -> None:
    """JUnit files of 500 cases: 2 % failed, 28 % skipped."""
    for shard in range(rows // CASES):
        lines = ["<testsuites><testsuite name='pytest' timestamp='2026-08-01T00:00:00'>"]
        for case in range(CASES):
            draw = (shard * 7919 + case * 104729) % 100
            bad = f'<failure message="assert {case} == {shard}"/>' if draw < 2 else ""
            body = bad or ('<skipped type="pytest.skip" message="slow"/>' if draw < 30 else "")
            head = f'<testcase classname="shard.s{shard:04}.T{case // 50:02}" name="test_{case:03}" time="{draw / 50:.3f}"'
            lines.append(f"{head}>{body}</testcase>" if body else f"{head}/>")
        (folder / f"shard-{shard:04}.xml").write_text("\n".join([*lines, "</testsuite></testsuites>"]))


def _write_lines(folder: Path, rows: int) -> None:
    """The event lines of 24 workers, as the runner writes them."""
    for worker in range(WORKERS):
        _write_events(folder / f"w{worker:02}.jsonl", worker, rows)


def _write_events(path: Path, worker: int, rows: int) -> None:
    """The events of one of 24 workers: 2 % failed, 28 % skipped."""
    with path.open("w") as file:
        at = '"at":"2026-08-01T00:00:00.500000+00:00"'
        file.write(f'{{"event":"worker_started",{at},"worker":"w{worker}","card":"{worker}","host":"h","round":1}}\n')
        for row in range(worker, rows, WORKERS):
            draw = row * 7919 % 100
            outcome = "failed" if draw < 2 else "skipped" if draw < 30 else "passed"
            message = f',"message":"assert {row} == 0"' if draw < 2 else ""
            file.write(
                f'{{"event":"attempt",{at},"suite":"pytorch","test":"{_test(row)}","outcome":"{outcome}",'
                f'"started_at":"2026-08-01T00:00:00.250000+00:00","duration_s":{draw / 50}{message}}}\n'
            )


def _test(row: int) -> str:
    return f"test/test_{row % 400}.py::TestCommon::test_op_{row}"


_WRITERS = {"shard reports": _write_shards, LINES: _write_lines}


def _measure_ingest(root: str, folder: str) -> dict[str, Any]:
    """From files to stored rows, and then the account of all tests."""
    store, began = ResultsStore(Path(root)), time.perf_counter()
    report = ingest([Path(folder)], Build("nightly-20260801", VARIANT), SUITE, FIRST_DAY, store)
    stored = time.perf_counter()
    judged = store.judged(report.stored)
    account = account_of(judged["test"].combine_chunks(), judged)
    ended = time.perf_counter()
    return {
        "files": len(report.files),
        "rows": report.rows,
        "tests": sum(account.counts.values()),
        "store_s": round(stored - began, 2),
        "ledger_s": round(ended - stored, 2),
        "ingest_s": round(ended - began, 2),
        "stored_rows_per_s": round(report.rows / (stored - began)),
        "rss_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }


# --- a nightly --------------------------------------------------------------------------------------------------------


def _lay_nightly(folder: str, count: str) -> dict[str, Any]:
    """Lay out the round of a stage whose workers have ended."""
    home, attempts = Path(folder), int(count)
    project, revision = _toy_project(home), _revision()
    context = Workspace(project).stage_context(revision, VARIANT, "device")
    tests = [SelectedTest(SUITE, _test(row)) for row in range(attempts)]
    selected = context.artifacts.put_bytes(TypeAdapter(list[SelectedTest]).dump_json(tests), "selection.json")
    selection = TestSelection(selected, (SuiteSelection(SUITE, attempts, attempts, {}),), 0.0)
    plan = plan_device_tests(project.settings, selection, {}, context.artifacts)
    (home / "plan.json").write_bytes(TypeAdapter(TestPlan).dump_json(plan))
    (home / "selection.json").write_bytes(TypeAdapter(TestSelection).dump_json(selection))
    batches = read_plan(plan.batches, context.artifacts)
    record = pool_for(project.settings).open_round(context.folder / "round-1")
    limits = project.settings.limits
    record.prepare(
        1, batches.batches, _worker_spec(project),
        Limits(limits.test_timeout_seconds, limits.silence_seconds, limits.startup_seconds, limits.probe_seconds),
        batches.urgent,
    )  # fmt: skip
    for worker in range(WORKERS):
        folder = context.folder / "round-1" / "workers" / f"w0-{worker}"
        folder.mkdir()
        _write_events(folder / "events.jsonl", worker, attempts)
    record.finish(3600.0)
    return {"attempts": attempts}


def _measure_nightly(home: str) -> dict[str, Any]:
    """Measure the work of `device_test_results` and `ledger` after the workers have ended."""
    project, revision = _toy_project(Path(home)), _revision()
    workspace = Workspace(project)
    selection = TypeAdapter(TestSelection).validate_json((Path(home) / "selection.json").read_bytes())
    plan = TypeAdapter(TestPlan).validate_json((Path(home) / "plan.json").read_bytes())
    context = workspace.stage_context(revision, VARIANT, "device")
    began, cpu = time.perf_counter(), time.process_time()
    with LineProgress(lambda _: None).step("device") as step:
        results = run_device_stage(project.settings, selection.tests, [SUITE], plan, _worker_spec(project), context, step)
    stored = time.perf_counter()
    ledger = close_ledger(context.build, [results], None, [SUITE], workspace.artifacts, workspace.results)
    ended = time.perf_counter()
    if not ledger.expected == sum(ledger.counts.values()) == plan.tests:
        raise AccelCiError(f"{plan.tests} tests were planned, and the ledger has {ledger.counts}")
    return {
        "attempts": plan.tests,
        "seconds": round(ended - began, 2),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        "stage_s": round(stored - began, 2),
        "ledger_s": round(ended - stored, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
    }


def _report_nightlies(measured: Sequence[dict[str, Any]], as_json: bool) -> int:
    """Print the measurements; 1 when a goal is missed."""
    console = Console(width=150)
    if as_json:
        console.print_json(json.dumps(measured))
    else:
        table = Table(title="from the events of 24 workers to a closed ledger")
        for name in (*measured[0], "goal"):
            table.add_column(name.replace("_", " "), justify="right")
        for row in measured:
            seconds, peak_mb = NIGHTLY_GOALS[row["attempts"]]
            table.add_row(*(f"{value:,}" for value in row.values()), f"{seconds:g} s, {peak_mb:,} MB")
        console.print(table)
    return int(not all(_met_by_night(row, *NIGHTLY_GOALS[row["attempts"]]) for row in measured))


def _met_by_night(row: dict[str, Any], seconds: float, peak_mb: int) -> bool:
    return bool(row["seconds"] <= seconds and row["peak_mb"] <= peak_mb)


def _toy_project(home: Path) -> Project:
    job = {"cron": "0 2 * * *", "suites": [SUITE]}
    document = {
        "backend": {"name": "toy", "distribution": "toy", "import_name": "toy", "repository": ".", "owners": ["team:toy"]},
        "upstream": {"repository": "upstream", "ref": "refs/heads/main"},
        "variants": [{"name": VARIANT, "python": "3.11", "torch": "torch", "runtime": "none"}],
        "suites": {SUITE: {"paths": ["test"]}},
        "pool": {"cards": WORKERS, "card_environment": "TOY_CARD", "rounds": 1},
        "jobs": {"nightly": job, "intraday": job, "main": {"suites": [SUITE]}, "pr": {"suites": [SUITE]}},
    }
    return Project(parse_settings(json.dumps(document)), home / "accel_ci.yaml", home)


def _worker_spec(project: Project) -> WorkerSpec:
    image = RuntimeImage("venv", sys.executable, "", platform.python_version(), "2", None, (), True, 0.0)
    return worker_spec_for(project.settings, image, project.home)


def _revision() -> Revision:
    source = Source("toy", "refs/heads/main", "0" * 40)
    return Revision("nightly-20260801", "nightly", datetime(2026, 8, 1, tzinfo=timezone.utc), source, source)


# --- one more night ---------------------------------------------------------------------------------------------------


def _nights(scratch: Path, rows: int, nights: Sequence[int]) -> list[dict[str, Any]]:
    """Make a history night by night; measure one more night, and look-ups, after each of `nights`."""
    measured = []
    store = ResultsStore(scratch / "store")
    tests = rows * 49 // 50
    before = 0
    for count in nights:
        for night in range(before, count):
            _store_night(store, _night(tests, night), night)
        before = count
        measure(store, FIRST_DAY + timedelta(days=count - 1), 30)  # the night before has left its sums behind
        report = scratch / "night.arrow"
        table = _night(tests, count)
        with pa.ipc.new_file(str(report), table.schema) as writer:
            writer.write_table(table)
        row = _child("night", str(scratch / "store"), str(report), str(count))
        row |= _child("history", str(scratch / "store"), str(count), str(tests))
        size = sum(file.stat().st_size for file in (scratch / "store").rglob("*") if file.is_file())
        measured.append({"nights": count, "rows": count * rows, "store_gb": round(size / 1e9, 3), **row})
        before = count + 1 if count + 1 <= max(nights) else count
    return measured


def _night(tests: int, night: int) -> pa.Table:
    began = (FIRST_DAY + timedelta(days=night)).isoformat()
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE tests AS {_TESTS}", {"tests": tests})
        return cast(pa.Table, connection.sql(_NIGHT, params={"night": night, "began": began}).to_arrow_table())


def _store_night(store: ResultsStore, night: pa.Table, number: int) -> None:
    day = FIRST_DAY + timedelta(days=number)
    build = Build(f"nightly-{day:%Y%m%d}", VARIANT)
    store.write_rows(build, day, SUITE, from_report(build, SUITE, night))


def _measure_night(root: str, report: str, number: str) -> dict[str, Any]:
    """One more night: from columns to stored rows, rollups and flakiness."""
    began = time.perf_counter()
    night = pa.ipc.open_file(pa.memory_map(report)).read_all()
    store = ResultsStore(Path(root))
    _store_night(store, night, int(number))
    stored = time.perf_counter()
    flakiness = measure(store, FIRST_DAY + timedelta(days=int(number)), 30)
    ended = time.perf_counter()
    return {
        "night_rows": len(night),
        "store_s": round(stored - began, 2),
        "flakiness_s": round(ended - stored, 2),
        "night_s": round(ended - began, 2),
        "night_rss_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "flaky": len(flakiness.flaky),
    }


def _measure_history(root: str, number: str, tests: str) -> dict[str, Any]:
    """One test's last 90 days, for tests all over the store; the first look-up is that of a fresh process."""
    store, today = ResultsStore(Path(root)), FIRST_DAY + timedelta(days=int(number))
    times, builds = [], 0
    for look_up in range(LOOK_UPS):
        i = look_up * 7919 % int(tests)
        test = (
            f"test/test_{i % 400}.py::TestCommon{i % 37}PRIVATEUSE1::test_out_warning_op_{i // 400}_privateuse1_float{i % 4}"
        )
        began = time.perf_counter()
        builds = len(history(store, test, today, 90))
        times.append((time.perf_counter() - began) * 1000)
    return {
        "history_builds": builds,
        "history_first_ms": round(times[0], 1),
        "history_ms": round(statistics.median(times), 1),
    }


_PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "night": _measure_night,
    "history": _measure_history,
    "ingest": _measure_ingest,
    "lay nightly": _lay_nightly,
    "nightly": _measure_nightly,
}


def _child(*part: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.results", "--part", *part],
        check=True,
        capture_output=True,
        text=True,
        timeout=900,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "duckdb": duckdb.__version__,
    }


def _met(row: dict[str, Any]) -> bool:
    fast = row.get("input") != LINES or row["stored_rows_per_s"] >= LINES_PER_S
    return fast and all(row[name] < goal for name, goal in GOALS.items() if name in row)


def _print(measured: dict[str, Any]) -> None:
    console = Console(width=150)
    console.print(measured["machine"])
    titles = {
        "ingests": "from files to stored rows and a ledger",
        "nights": "one more night, and one test's 90 days, after …",
    }
    for part, title in titles.items():
        table = Table(title=title)
        for name in measured[part][0]:
            table.add_column(name.replace("_", " "), justify="right")
        for row in measured[part]:
            table.add_row(*(f"{value:,}" if isinstance(value, (int, float)) else value for value in row.values()))
        console.print(table)
    goals = [f"{name} < {goal:g}" for name, goal in GOALS.items()]
    console.print(f"goals: {', '.join(goals)}, {LINES} stored per second >= {LINES_PER_S:,}")


if __name__ == "__main__":
    sys.exit(main())
