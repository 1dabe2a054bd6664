"""Run the unit tests of the stack's components, and store their results as suites of the build.

Each command is a test, which fails when its exit status is not 0. The tests of the reports in JUnit's format that the
commands write count beside them; one more test fails where reports are missing, are not whole, or have no test.
"""

from __future__ import annotations

import hashlib
import shlex
import time
from collections import Counter
from collections.abc import Mapping
from datetime import date, datetime, timezone
from pathlib import Path

import pyarrow as pa
from filelock import FileLock
from pydantic import TypeAdapter

from accel_ci.config.stack_settings import Stack
from accel_ci.errors import BuildError
from accel_ci.model import OUTCOMES, Build, DeviceTestResults, SelectedTest, SoftwareStack
from accel_ci.pipelines import STACK_SUITE
from accel_ci.progress import Step
from accel_ci.reports.parse import read_file
from accel_ci.results.columns import counts_of, kernels
from accel_ci.results.ingest import report_table
from accel_ci.results.rows import REPORT, from_report
from accel_ci.results.store import ResultsStore
from accel_ci.stack.build import BuiltComponent, component_place
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.wheels.uv_environment import PackageSource

_TESTS = TypeAdapter(list[SelectedTest])
_SHOWN_COMMAND, _MOST_REPORTS = 160, 5000

REPORTS = "reports"
"""The test that fails where the reports of a component are not what they should be."""


def run_unit_tests(
    settings: Stack,
    stack: SoftwareStack,
    packages: PackageSource,
    cache: Path,
    build: Build,
    day: date,
    artifacts: ArtifactStore,
    results: ResultsStore,
    step: Step,
) -> DeviceTestResults:
    """Run the tests of the components in the trees that they were built in, and store them; `day` is the revision's.

    Raises `BuildError` if a tree is gone: the stack must then be built again.
    """
    started, counts, expected, digests = time.monotonic(), Counter[str](), list[SelectedTest](), list[str]()
    keys = {component.name: component.key for component in stack.components}
    tested = [component for component in settings.components if component.test and component.name in keys]
    step.total(len(tested))
    for component in tested:
        place, suite = component_place(component, keys[component.name], cache, packages), f"{STACK_SUITE}{component.name}"
        began = datetime.now(timezone.utc)
        with FileLock(place.lock_file):
            if not place.record.is_file():
                raise BuildError(
                    f"the built tree of {component.name} is gone; `accel-ci run … --again` builds the stack anew"
                )
            with place.lent_sources():
                rows = run_component_tests(place, stack.environment)
        table = pa.concat_tables(list(from_report(build, suite, rows, began)))
        digests.append(results.digest(results.write_rows(build, day, suite, [table])))
        found = counts_of(table["outcome"])
        counts.update(found)
        expected += [SelectedTest(suite, test) for test in sorted(kernels.unique(table["test"]).to_pylist())]
        step.advance(f"{component.name}: {', '.join(f'{count} {outcome}' for outcome, count in sorted(found.items()))}")
    took_s = round(time.monotonic() - started, 3)
    return DeviceTestResults(
        artifacts.put_bytes(_TESTS.dump_json(expected, exclude_defaults=True), "expected.json"),
        tuple(f"{STACK_SUITE}{component.name}" for component in tested),
        {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]},
        rounds=(),
        cards=(),
        makespan_s=took_s,
        lower_bound_s=0.0,
        work_s=took_s,
        digest=hashlib.sha256("\n".join(digests).encode()).hexdigest(),
    )


def run_component_tests(place: BuiltComponent, environment: Mapping[str, str]) -> pa.Table:
    """Run the tests of a component, one command after another, and return their rows (columns of `REPORT`).

    `environment` is the whole stack's.
    """
    component, rows = place.component, []
    for stale in _reports(place):
        stale.unlink()
    for number, command in enumerate(component.test, 1):
        began, began_at = time.monotonic(), datetime.now(timezone.utc)
        outcome, message = "passed", None
        try:
            done = place.run(command, environment)
            if done.status != 0:
                outcome, message = "failed", f"the exit status is {done.status}\n{done.tail}"
        except BuildError as error:  # at the limit, or without the program
            outcome, message = "error", str(error)
        rows.append({
            "test": f"command {number}: {shlex.join(command)[:_SHOWN_COMMAND]}", "outcome": outcome, "message": message,
            "duration_s": round(time.monotonic() - began, 3), "started_at": began_at,
        })  # fmt: skip
    tables, doubts = [], []
    files = _reports(place) if component.reports else []
    for path in files:
        report = read_file(path)
        tables.append(report_table(report))
        if report.status != "complete" or not len(tables[-1]):
            doubts.append(f"{path.relative_to(place.sources)} is {report.status} ({', '.join(sorted(report.warnings))})")
    if component.reports:
        if not files:
            doubts.append(f"no command has written a report ({', '.join(component.reports)})")
        rows.append({"test": REPORTS, "outcome": "error" if doubts else "passed", "message": "\n".join(doubts) or None})
    return pa.concat_tables([*tables, pa.Table.from_pylist(rows, schema=REPORT)])


def _reports(place: BuiltComponent) -> list[Path]:
    """The reports in the sources of a component. What a link there leads to elsewhere is none."""
    root = place.sources.resolve()
    found = {path for pattern in place.component.reports for path in place.sources.glob(pattern)}
    inside = sorted(
        path for path in found if path.is_file() and not path.is_symlink() and path.resolve().is_relative_to(root)
    )
    return inside[:_MOST_REPORTS]
