"""How fast the results store is: `python -m benchmarks.results [--json] [--scale small|full]`.

Two questions: how long 2,000 shard reports of 500 cases take from files to stored rows and a balanced ledger; and what one more
night of a million rows costs after 1, 10 and 100 nights, with what a look-up of one test's 90 days costs then. Each measurement
is a process of its own, so that its peak memory is its own.
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
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from accel_ci.model import Build
from accel_ci.quality.flakiness import measure
from accel_ci.results.questions import history
from accel_ci.results.rows import from_report
from accel_ci.results.store import ResultsStore

FIRST_DAY = date(2026, 8, 1)
SUITE, VARIANT = "pytorch", "py3.11"
LOOK_UPS = 20
SCALES = {"small": (100_000, (1, 10)), "full": (1_000_000, (1, 10, 100))}
GOALS = {"night_s": 15.0, "night_rss_gb": 2.0, "history_ms": 60.0, "shards_s": 15.0}

_TESTS = """
SELECT i, 'test/test_' || (i % 400) || '.py' AS file, 'test_out_warning_op_' || (i // 400) || '_privateuse1_float' || (i % 4) AS name,
       'test.test_' || (i % 400) || '.TestCommon' || (i % 37) || 'PRIVATEUSE1' AS classname, hash(i) % 100 AS kind
FROM range($tests) r(i)
"""
# Of the tests 4 % are shaky: 40 % of their runs fail, and then every third second attempt passes. 26 % are always skipped.
_NIGHT = """
SELECT file, classname, name, again AS attempt, to_microseconds(i * 40000 + again) + $began::TIMESTAMPTZ AS started_at,
       (hash(i, $night) % 2000) / 1000.0 AS duration_s, (i % 24)::VARCHAR AS card, 'host-' || (i % 6) AS host, 'w' || (i % 24) AS worker,
       CASE WHEN bad AND (again = 0 OR hash(i, $night, 2) % 3 > 0) THEN 'failed' WHEN kind > 73 THEN 'skipped' ELSE 'passed' END AS outcome,
       CASE WHEN outcome = 'failed' THEN 'AssertionError: max abs diff 0.' || (hash(i, $night, 3) % 1000) || ' > 0.01 in op ' || (i % 97)
       END AS message
FROM (SELECT *, kind < 4 AND hash(i, $night, 1) % 100 < 40 AS bad FROM tests), range(2) again(again)
WHERE again = 0 OR bad ORDER BY i, again
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and give an exit code: 1 when a goal is missed at full scale."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--scale", choices=tuple(SCALES), default="small", help="full: 100 nights of a million rows, some 4 GB and 10 min"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(os.environ.get("TMPDIR", "/var/tmp")), help="where the history is made"
    )
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.part:
        Console().print_json(json.dumps(_PARTS[options.part[0]](*options.part[1:])))
        return 0
    scratch = Path(tempfile.mkdtemp(prefix="accel-ci-benchmark-", dir=options.folder))
    try:
        measured = {"machine": _machine(), "scale": options.scale, "nights": _nights(scratch, *SCALES[options.scale])}
    finally:
        shutil.rmtree(scratch)
    if options.json:
        Console().print_json(json.dumps(measured))
    else:
        _print(measured)
    return int(options.scale == "full" and not all(_met(row) for row in measured["nights"]))


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
        night = _night(tests, count)
        with pa.ipc.new_file(str(report), night.schema) as writer:
            writer.write_table(night)
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
        return connection.sql(_NIGHT, params={"night": night, "began": began}).to_arrow_table()


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


_PARTS = {"night": _measure_night, "history": _measure_history}


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
    return all(row[name] < goal for name, goal in GOALS.items() if name in row)


def _print(measured: dict[str, Any]) -> None:
    console = Console(width=140)
    console.print(measured["machine"])
    table = Table(title="one more night, and one test's 90 days, after a history of …")
    for name in measured["nights"][0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in measured["nights"]:
        table.add_row(*(f"{value:,}" for value in row.values()))
    console.print(table)
    console.print("goals: " + ", ".join(f"{name} < {goal:g}" for name, goal in GOALS.items()))


if __name__ == "__main__":
    sys.exit(main())
