"""What a run of Bazel amounts to: rows as they are stored, the targets with their logs, and the word on remote execution.

A test that Bazel expected has a row whatever became of it. Where remote execution was out of reach, the tests that have no
result of their own are put down to the infrastructure, with one message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
"""Exit statuses that speak of Bazel's surroundings, not of what is built: remote execution, memory, the machine, itself."""

_NO_TESTS = 4
_LOOK_BACK = timedelta(days=31)
_RAN = ("PASSED", "FLAKY", "FAILED", "TIMEOUT")
_MOST_LOGS = 5000


def store_results(
    run: BazelRun, build: Build, day: date, rbe: Rbe, artifacts: ArtifactStore, store: ResultsStore, work_s: float
) -> BazelTestResults:
    """Judge a run, store its rows, and keep its targets, logs and events as artifacts; `day` is the revision's.

    The tests of the variant's last build are lost to the infrastructure when Bazel did not come to name any. Raises
    `BuildError` when Bazel named no test and the infrastructure is not to blame.
    """
    summaries = [read_build(one.folder) for one in run.passes]
    infra = _infra(run.passes, summaries, rbe)
    tables = [_rows(one, summary, infra, rbe) for one, summary in zip(run.passes, summaries, strict=True)]
    if any(map(len, tables)):
        tables += [
            _silent(one, s, infra, rbe) for one, s, rows in zip(run.passes, summaries, tables, strict=True) if not len(rows)
        ]
    table = pa.concat_tables(tables)
    if not len(table):
        if infra is None:
            raise BuildError(_nothing_tested(run, summaries, rbe))
        table = _lost(_known_tests(store, build, day) or rbe.targets, infra)
    rows = pa.concat_tables(list(from_report(build, BAZEL_SUITE, table, run.started_at)))
    merged = rows
    for earlier in store.suites(day, day, build, suite=BAZEL_SUITE):
        merged = with_earlier(rows, store.read(earlier))
    stored = store.write_rows(build, day, BAZEL_SUITE, [merged])
    counts = counts_of(rows["outcome"])
    targets = [_target(target, one, artifacts) for one, s in zip(run.passes, summaries, strict=True) for target in _shown(s)]
    return BazelTestResults(
        artifacts.put_bytes(TARGETS.dump_json(targets), "bazel-targets.json"),
        artifacts.put_bytes(b"".join(_bytes(one.folder / "bep.ndjson") for one in run.passes), "bep.ndjson"),
        artifacts.put_bytes(_bytes(run.log), "bazel.log"),
        len(kernels.unique(rows["test"])),
        {outcome: counts[outcome] for outcome in OUTCOMES if counts.get(outcome)},
        kernels.sum(rows["cached"]).as_py() or 0,
        dict(Counter(target.status for target in targets)),
        _sum([summary.actions for summary in summaries]),
        infra,
        run.makespan_s,
        work_s,
        store.digest(stored),
    )


def _known_tests(store: ResultsStore, build: Build, day: date) -> list[str]:
    """The tests of the variant's last stored build before this one."""
    found = store.suites(day - _LOOK_BACK, day, variant=build.variant, suite=BAZEL_SUITE)
    before = [stored for stored in found if stored.build != build][-1:]
    return [str(test) for stored in before for test in kernels.unique(store.read(stored, ["test"])["test"]).to_pylist()]


def with_earlier(rows: pa.Table, earlier: pa.Table) -> pa.Table:
    """The rows, with what an earlier run of the same build attempted in place of results that are from a cache alone.

    The cache holds that very attempt, or an older one: the earlier run's own attempts tell more.
    """
    made = earlier.filter(kernels.invert(kernels.fill_null(earlier["cached"], False)))
    run_now = kernels.unique(rows.filter(kernels.invert(kernels.fill_null(rows["cached"], False)))["test"])
    made = made.filter(kernels.and_not(kernels.is_in(made["test"], rows["test"]), kernels.is_in(made["test"], run_now)))
    others = rows.filter(kernels.invert(kernels.is_in(rows["test"], kernels.unique(made["test"]))))
    return in_order(pa.concat_tables([others, made]), "test", "round", "attempt")


def read_targets(results: BazelTestResults, artifacts: ArtifactStore) -> list[BazelTarget]:
    """The targets with their logs."""
    return TARGETS.validate_json(artifacts.path(results.targets).read_bytes())


# --- rows -------------------------------------------------------------------------------------------------------------


def _rows(one: BazelPass, summary: BuildSummary, infra: str | None, rbe: Rbe) -> pa.Table:
    """The rows of a pass (columns of `REPORT`); a target that failed to build has one."""
    table = report_table(read_group(one.folder)) if (one.folder / "bep.ndjson").is_file() else REPORT.empty_table()
    rows = table.to_pylist()
    named = {row["target"] for row in rows}
    for target in summary.targets.values():
        if not target.is_test and target.status == "FAILED_TO_BUILD" and target.label not in named:
            rows.append(
                {"target": target.label, "classname": target.label, "name": _short(target.label), "outcome": "error"}
            )
    for row in rows:
        known = summary.targets.get(row["target"], TargetBuild(row["target"]))
        row["infra"] = None
        if row["outcome"] == "error" and known.message:
            row["message"] = known.message
        lost = known.out_of_reach or (infra is not None and not _has_own_result(known))
        if lost and row["outcome"] in ("error", "not_run"):
            row["infra"] = row["message"] = infra or known.message or "remote execution failed"
        elif row["outcome"] == "not_run" and one.status is None:
            row["message"] = _ended(rbe)
    return pa.Table.from_pylist(rows, schema=REPORT)


def _has_own_result(target: TargetBuild) -> bool:
    """Whether what is said of the target is its own: its tests ran, or its compiler complained."""
    return target.status in _RAN or (target.status == "FAILED_TO_BUILD" and target.message is not None)


def _silent(one: BazelPass, summary: BuildSummary, infra: str | None, rbe: Rbe) -> pa.Table:
    """The row of a pass that named no test beside passes that did, unless it had none to run: it is not to go unnoticed."""
    if one.status in (0, _NO_TESTS):
        return REPORT.empty_table()
    said = "; ".join(summary.errors[:3]) or f"Bazel named no test and ended with exit status {one.status}"
    row: dict[str, Any] = {"test": f"(pass {one.name})", "outcome": "error", "message": said}
    if infra is not None:
        row |= {"outcome": "not_run", "message": infra, "infra": infra}
    elif one.status is None:
        row |= {"outcome": "not_run", "message": _ended(rbe)}
    return pa.Table.from_pylist([row], schema=REPORT)


def _ended(rbe: Rbe) -> str:
    return f"Bazel was ended after {rbe.timeout_seconds:g} s (rbe.timeout_seconds)"


def _lost(tests: Sequence[str], infra: str) -> pa.Table:
    rows = [{"test": test, "outcome": "not_run", "message": infra, "infra": infra} for test in tests]
    return pa.Table.from_pylist(rows, schema=REPORT)


def _infra(passes: Sequence[BazelPass], summaries: Sequence[BuildSummary], rbe: Rbe) -> str | None:
    """The one message on what was out of reach; None when nothing was."""
    for one, summary in zip(passes, summaries, strict=True):
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


# --- targets ----------------------------------------------------------------------------------------------------------


def _shown(summary: BuildSummary) -> list[TargetBuild]:
    return [t for t in summary.targets.values() if t.is_test or t.status == "FAILED_TO_BUILD" or t.logs]


def _target(target: TargetBuild, one: BazelPass, artifacts: ArtifactStore) -> BazelTarget:
    folder = one.folder / "testlogs"
    paths = [path for log in dict.fromkeys(target.logs) if (path := below_folder(folder, log)) is not None]
    named = [artifacts.put(path, f"{_short(target.label).replace('/', '.')}.{path.stem}.log") for path in paths[:_MOST_LOGS]]
    return BazelTarget(target.label, target.status, target.cached, tuple(named), target.message)


def _short(label: str) -> str:
    return label.split("//", 1)[-1].replace(":", "/").lstrip("/")


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _sum(actions: Sequence[BazelActions]) -> BazelActions:
    return BazelActions(
        sum(a.created for a in actions),
        sum(a.executed for a in actions),
        sum(a.local_cache_hits for a in actions),
        sum(a.remote_cache_hits for a in actions),
    )
