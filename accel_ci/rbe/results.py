"""Turn a run of Bazel into results: the rows to store, the targets with their logs, and a message on remote execution.

Every test that Bazel expected has a row. If remote execution cannot be reached, tests without a result of their own count
as lost to the infrastructure, with one message.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from accel_ci.config.settings import Rbe
from accel_ci.errors import BuildError
from accel_ci.model import BAZEL_SUITE, OUTCOMES, BazelActions, BazelTarget, BazelTestResults, Build
from accel_ci.rbe.bazel import BazelPass, BazelRun
from accel_ci.reports.bep import below_folder
from accel_ci.reports.bep_build import BuildSummary, TargetBuild, read_build
from accel_ci.reports.parse import read_group
from accel_ci.results.columns import counts_of, in_order, kernels
from accel_ci.results.ingest import report_table
from accel_ci.results.rows import REPORT, from_report
from accel_ci.results.store import ResultsStore
from accel_ci.storage.artifacts import ArtifactStore

TARGETS = TypeAdapter(list[BazelTarget])

_OUT_OF_REACH = {32, 33, 34, 36, 37, 38, 39, 45}
"""Exit statuses that are not about the build, but about remote execution, memory, the machine, or Bazel itself."""

_NO_TESTS = 4
_LOOK_BACK = timedelta(days=31)
_RAN = ("PASSED", "FLAKY", "FAILED", "TIMEOUT")
_MOST_LOGS = 5000
_WORDS = ["test", "classname", "name", "file", "target"]


def store_results(
    run: BazelRun,
    build: Build,
    day: date,
    rbe: Rbe,
    artifacts: ArtifactStore,
    store: ResultsStore,
    work_s: float,
    before: ResultsStore | None = None,
) -> BazelTestResults:
    """Judge a run, store its rows, and keep its targets, logs and events as artifacts; `day` is the revision's.

    If a target was lost to the infrastructure, its tests are those of the last build of the variant in which it was not; if
    Bazel named no test, so are all tests. `before` has the results of builds that may tell them, by default those of all.
    Raises `BuildError` if Bazel named no test for another reason.
    """
    passes = [(one, read_build(one.folder)) for one in run.passes]
    infra = _infra(passes, rbe)
    tables = [_rows(one, summary, infra, rbe) for one, summary in passes]
    if any(map(len, tables)):
        tables += [_silent(*each, infra, rbe) for each, rows in zip(passes, tables, strict=True) if not len(rows)]
    table = pa.concat_tables(tables)
    if not len(table):
        if infra is None:
            raise BuildError(_nothing_tested(run, [summary for _, summary in passes], rbe))
        lost = {"outcome": "not_run", "message": infra, "infra": infra}
        known = next((cases for cases in _earlier_cases(before or store, build, day) if cases), [])
        wanted = known or [{"test": target} for target in rbe.targets]
        table = pa.Table.from_pylist([{**case, **lost} for case in wanted], schema=REPORT)
    table = _with_known_cases(table, _earlier_cases(before or store, build, day))
    rows = pa.concat_tables(list(from_report(build, BAZEL_SUITE, table, run.started_at)))
    merged = rows
    for earlier in store.suites(day, day, build, suite=BAZEL_SUITE):
        merged = with_earlier(rows, store.read(earlier))
    stored = store.write_rows(build, day, BAZEL_SUITE, [merged])
    counts = counts_of(rows["outcome"])
    shown = [(target, one) for one, summary in passes for target in summary.targets.values() if _is_shown(target)]
    targets = [_target(target, one, artifacts, infra) for target, one in shown]
    return BazelTestResults(
        artifacts.put_bytes(TARGETS.dump_json(targets), "bazel-targets.json"),
        artifacts.put_bytes(b"".join(_bytes(one.folder / "bep.ndjson") for one in run.passes), "bep.ndjson"),
        artifacts.put_bytes(_bytes(run.log), "bazel.log"),
        len(kernels.unique(rows["test"])),
        {outcome: counts[outcome] for outcome in OUTCOMES if counts.get(outcome)},
        kernels.sum(rows["cached"]).as_py() or 0,
        dict(Counter(target.status for target in targets)),
        BazelActions(*map(sum, zip(*(astuple(summary.actions) for _, summary in passes), strict=True))),
        infra,
        run.makespan_s,
        work_s,
        store.digest(stored),
    )


def _earlier_cases(store: ResultsStore, build: Build, day: date) -> Iterator[list[dict[str, Any]]]:
    """The tests that the variant's earlier builds did not lose, with a report's own words; the last build first."""
    found = store.suites(day - _LOOK_BACK, day, variant=build.variant, suite=BAZEL_SUITE)
    for stored in reversed([stored for stored in found if stored.build != build]):
        rows = store.read(stored, [*_WORDS, "infra"])
        own = rows.filter(kernels.is_null(rows["infra"])).select(_WORDS)
        yield list({row["test"]: row for row in own.to_pylist()}.values())


def _with_known_cases(table: pa.Table, earlier: Iterable[list[dict[str, Any]]]) -> pa.Table:
    """The rows, where those of the tests that a lost target had before replace the one row of the target."""
    rows = table.to_pylist()
    kept = {row["target"] for row in rows if row["infra"] is None}
    lost = {row["target"]: row for row in rows if row["target"] not in kept and row["name"] == _short(row["target"] or "")}
    cases: dict[str, list[dict[str, Any]]] = {}
    for build in earlier if lost else ():
        of_target: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for case in build:
            of_target[case["target"]].append(case)
        cases = {label: of_target[label] for label in lost if label in of_target} | cases
        if len(cases) == len(lost):
            break
    fields = ("outcome", "message", "infra")
    known = [{**case, **{name: lost[label][name] for name in fields}} for label, found in cases.items() for case in found]
    return pa.Table.from_pylist([row for row in rows if row["target"] not in cases] + known, schema=REPORT)


def with_earlier(rows: pa.Table, earlier: pa.Table) -> pa.Table:
    """The rows, where an earlier run's own attempts of the same build replace results that come only from a cache.

    The cache holds that same attempt or an older one, so the earlier run's attempts have more information.
    """
    made = earlier.filter(kernels.invert(kernels.fill_null(earlier["cached"], False)))
    run_now = kernels.unique(rows.filter(kernels.invert(kernels.fill_null(rows["cached"], False)))["test"])
    made = made.filter(kernels.and_not(kernels.is_in(made["test"], rows["test"]), kernels.is_in(made["test"], run_now)))
    others = rows.filter(kernels.invert(kernels.is_in(rows["test"], kernels.unique(made["test"]))))
    return in_order(pa.concat_tables([others, made]), "test", "round", "attempt")


def read_targets(results: BazelTestResults, artifacts: ArtifactStore) -> list[BazelTarget]:
    """The targets with their logs."""
    return TARGETS.validate_json(artifacts.path(results.targets).read_bytes())


def _rows(one: BazelPass, summary: BuildSummary, infra: str | None, rbe: Rbe) -> pa.Table:
    """The rows of a pass (columns of `REPORT`); a target that failed to build has one."""
    table = report_table(read_group(one.folder)) if (one.folder / "bep.ndjson").is_file() else REPORT.empty_table()
    rows = table.to_pylist()
    named = {row["target"] for row in rows}
    for target in summary.targets.values():
        if not target.is_test and target.status == "FAILED_TO_BUILD" and target.label not in named:
            label = target.label
            rows.append({"target": label, "classname": label, "name": _short(label), "outcome": "error"})
    for row in rows:
        known = summary.targets.get(row["target"], TargetBuild(row["target"]))
        row["infra"] = None
        if row["outcome"] == "error" and known.message:
            row["message"] = known.message
        has_own_result = known.status in _RAN or (known.status == "FAILED_TO_BUILD" and known.message is not None)
        lost = known.out_of_reach or (infra is not None and not has_own_result)
        if lost and row["outcome"] in ("error", "not_run"):
            row["infra"] = row["message"] = infra or known.message or "remote execution failed"
        elif row["outcome"] == "not_run" and one.status is None:
            row["message"] = _ended(rbe)
    return pa.Table.from_pylist(rows, schema=REPORT)


def _silent(one: BazelPass, summary: BuildSummary, infra: str | None, rbe: Rbe) -> pa.Table:
    """The row that shows a pass that named no test beside passes that did; none if it had no test to run."""
    if one.status in (0, _NO_TESTS):
        return REPORT.empty_table()
    message = "; ".join(summary.errors[:3]) or f"Bazel named no test and ended with exit status {one.status}"
    row = {"test": f"(pass {one.name})", "outcome": "error", "message": message}
    if infra is not None:
        row |= {"outcome": "not_run", "message": infra, "infra": infra}
    elif one.status is None:
        row |= {"outcome": "not_run", "message": _ended(rbe)}
    return pa.Table.from_pylist([row], schema=REPORT)


def _ended(rbe: Rbe) -> str:
    return f"Bazel was ended after {rbe.timeout_seconds:g} s (rbe.timeout_seconds)"


def _infra(passes: Sequence[tuple[BazelPass, BuildSummary]], rbe: Rbe) -> str | None:
    """A message on what could not be reached; None if everything could."""
    for one, summary in passes:
        lost = next((t for t in summary.targets.values() if t.out_of_reach), None)
        code = summary.exit_code if summary.complete else one.status
        if code in _OUT_OF_REACH or lost is not None:
            cause = summary.errors[0].removeprefix("ERROR: ") if summary.errors else (lost.message if lost else None)
            where = rbe.executor or rbe.cache or "this machine"
            return (
                f"Bazel could not work on {where}: {cause or summary.exit_name or f'exit status {code}'}; "
                "see that remote execution answers and takes the credentials, then run the build again"
            )
    return None


def _nothing_tested(run: BazelRun, summaries: Sequence[BuildSummary], rbe: Rbe) -> str:
    errors = [error.removeprefix("ERROR: ") for summary in summaries for error in summary.errors]
    if not errors:
        lines = _bytes(run.log).decode("utf-8", "replace").splitlines()
        errors = [line for line in lines if line.startswith(("ERROR: ", "FATAL: "))]
    if not errors:
        statuses = {one.status for one in run.passes}
        missing = "no test target is among rbe.targets with rbe.test_tag_filters"
        errors = [_ended(rbe) if None in statuses else missing if statuses <= {0, _NO_TESTS} else "it printed no error"]
    status = ", ".join(f"{one.name}: exit status {one.status}" for one in run.passes)
    return f"Bazel tested nothing ({status}): {'; '.join(errors[:3])}. Its output is {run.log}"


def _is_shown(target: TargetBuild) -> bool:
    return target.is_test or target.status == "FAILED_TO_BUILD" or bool(target.logs)


def _target(target: TargetBuild, one: BazelPass, artifacts: ArtifactStore, infra: str | None) -> BazelTarget:
    folder = one.folder / "testlogs"
    paths = [path for log in dict.fromkeys(target.logs) if (path := below_folder(folder, log)) is not None]
    named = [artifacts.put(path, f"{_short(target.label).replace('/', '.')}.{path.stem}.log") for path in paths[:_MOST_LOGS]]
    return BazelTarget(
        target.label,
        target.status,
        target.cached,
        tuple(named),
        target.message or (infra if target.status == "NO_STATUS" else None),
    )


def _short(label: str) -> str:
    return label.split("//", 1)[-1].replace(":", "/").lstrip("/")


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
