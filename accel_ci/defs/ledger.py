"""The ledger of a build, in which the pipelines meet.

Each pipeline ends in it. It takes what both have reported so far from their manifests, not from Dagster's inputs, since the
other pipeline may not have run.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg

from accel_ci.defs.metadata import build_link, check_result, redacted, table
from accel_ci.defs.partitions import build_of, builds
from accel_ci.defs.run_tags import verdict_tags
from accel_ci.defs.stage import Stages
from accel_ci.ledger.close import close_ledger
from accel_ci.ledger.comparison import count_newly_failing
from accel_ci.ledger.completeness import judge_completeness
from accel_ci.ledger.status import collected_drop, shortcomings
from accel_ci.ledger.wanted_suites import wanted_suites
from accel_ci.model import (
    INFORMATIVE,
    VERDICTS,
    BazelTestResults,
    Build,
    CheckResult,
    DeviceTestResults,
    Ledger,
    Revision,
    TestSelection,
)
from accel_ci.pipelines import (
    BAZEL_TEST_RESULTS,
    DEVICE_TEST_RESULTS,
    DEVICELESS_RESULTS,
    LEDGER,
    SMOKE_RESULTS,
    STACK_TEST_RESULTS,
    TEST_SELECTION,
)
from accel_ci.quality.current_quarantine import muted_failures, quarantined
from accel_ci.ramp.current import share_fault
from accel_ci.results.questions import bad_tests
from accel_ci.workspace import Workspace

_CHECKS = (
    dg.AssetCheckSpec("balanced", asset=LEDGER, blocking=True, description="The verdicts sum to the expected tests."),
    dg.AssetCheckSpec("not_empty", asset=LEDGER, blocking=True, description="A build without tests is no pass."),
    dg.AssetCheckSpec("collected", asset=LEDGER, description="No test vanished since the build before."),
    dg.AssetCheckSpec("complete", asset=LEDGER, description="Enough passed, and no test is gone without a reason."),
    dg.AssetCheckSpec("all_passed", asset=LEDGER, description="No test failed, none was lost."),
)


def ledger_asset(workspace: Workspace) -> dg.AssetsDefinition:
    """Make the ledger, partitioned as the builds are."""
    settings = workspace.project.settings
    make = dg.asset(
        group_name="results",
        owners=list(settings.backend.owners),
        partitions_def=builds(settings),
        deps=[
            DEVICE_TEST_RESULTS,
            *([BAZEL_TEST_RESULTS] if settings.rbe else []),
            *([STACK_TEST_RESULTS] if settings.stack else []),
        ],
        kinds={"parquet", "duckdb"},
        check_specs=_CHECKS,
    )
    return make(ledger)


def ledger(context: dg.AssetExecutionContext, stages: dg.ResourceParam[Stages]) -> dg.MaterializeResult:
    """The account of the build: every expected test has exactly one verdict, and every attempt is in the store."""
    build, workspace, manifests = build_of(context), stages.workspace, stages.workspace.manifests
    path = manifests.path(LEDGER, build.revision, build.variant)
    with stages.stage(context) as step:
        revision = stages.revision(context)
        account = manifests.write_ledger(build, partial(_account, workspace, revision, build))
        missing = f"; no results from {', '.join(account.missing_suites)}" if account.missing_suites else ""
        step.note(", ".join(f"{count} {verdict}" for verdict, count in account.counts.items() if count) + missing)
    new = count_newly_failing(manifests, workspace.results, account)
    context.instance.add_run_tags(context.run.run_id, verdict_tags(account, new))
    return dg.MaterializeResult(
        data_version=dg.DataVersion(account.digest),
        check_results=[
            check_result(one, build, warn=one.name in ("all_passed", "complete")) for one in _checks(workspace, account)
        ],
        metadata=redacted(_metadata(workspace, account, path)),
    )


def _account(workspace: Workspace, revision: Revision, build: Build) -> Ledger:
    """Close the ledger of a build over what is there of it now."""
    manifests, day = workspace.manifests, revision.created_at.date()
    # The device tests last, whose makespan it has.
    tested = (STACK_TEST_RESULTS, DEVICELESS_RESULTS, SMOKE_RESULTS, DEVICE_TEST_RESULTS)
    device = [manifests.find(name, build, DeviceTestResults) for name in tested]
    account = close_ledger(
        build,
        [results for results in device if results is not None],
        manifests.find(BAZEL_TEST_RESULTS, build, BazelTestResults),
        [suite for _, suite in wanted_suites(workspace, revision, build)],
        workspace.artifacts,
        workspace.results.around(day),
    )
    if revision.trigger in INFORMATIVE:
        account = replace(account, informative=True)
    else:
        account = judge_completeness(workspace, revision, account)
    if fault := share_fault(workspace, revision, build):
        account = replace(account, incomplete=(*account.incomplete, fault))
    muted = muted_failures(workspace.results, account, quarantined(workspace, build.variant, day))
    return replace(account, muted=muted)


def _metadata(workspace: Workspace, account: Ledger, path: Path) -> dict[str, Any]:
    suites = [[suite, *(counts[verdict] for verdict in VERDICTS)] for suite, counts in account.suites.items()]
    bad = bad_tests(workspace.results, account.build, account.suites)
    not_passed = [[v.suite, v.test, v.verdict, ", ".join(v.attempts), v.message or ""] for v in bad]
    return {
        "manifest": dg.MetadataValue.path(workspace.manifests.share.location(path)),
        "page": build_link(workspace, account.build),
        "expected": account.expected,
        **{str(verdict): count for verdict, count in account.counts.items()},
        "infra_attempts": account.infra_attempts,
        "missing_suites": table(["suite"], [[suite] for suite in account.missing_suites]),
        "unexpected": table(["test"], [[test] for test in account.unexpected]),
        "suites": table(["suite", *VERDICTS], suites),
        "not_passed": table(["suite", "test", "verdict", "attempts", "message"], not_passed),
    }


def _collected_check(workspace: Workspace, account: Ledger) -> CheckResult:
    """Check that neither pipeline lost tests since the build before: collected, in scope or enabled.

    An informative build, such as a sweep, runs other tests each time.
    """
    if account.informative:
        return CheckResult("collected", True, "this build only informs: it may run fewer tests than the one before")
    build = account.build
    manifests, reason = workspace.manifests, workspace.project.settings.quality.fewer_tests_reason
    faults, counts = [], []
    for pipeline, stage, kind in (("", TEST_SELECTION, TestSelection), ("Bazel: ", BAZEL_TEST_RESULTS, BazelTestResults)):
        earlier = _collected(manifests.previous(stage, build, kind))
        for what, count in _collected(manifests.find(stage, build, kind)).items():
            before = earlier.get(what)
            if fault := collected_drop(count, before, reason, what):
                faults.append(f"{pipeline}{fault}")
            counts.append(f"{pipeline}{count} {what}, {'none' if before is None else before} in the build before")
    return CheckResult("collected", not faults, "; ".join(faults or counts) or "nothing was collected yet")


def _collected(results: object) -> dict[str, int]:
    """Return the numbers of tests; none where a stage has not ended, or Bazel met bad infrastructure."""
    if isinstance(results, TestSelection):
        return {"collected": results.collected, "in scope": results.in_scope, "enabled": results.enabled}
    return {"collected": results.expected} if isinstance(results, BazelTestResults) and results.infra is None else {}


def _checks(workspace: Workspace, account: Ledger) -> list[CheckResult]:
    total, bad = sum(account.counts.values()), shortcomings(account)
    too_little = (*account.incomplete, *account.vanished_reasons)
    return [
        CheckResult("balanced", total == account.expected, f"{account.expected} expected, {total} accounted for"),
        CheckResult("not_empty", account.expected > 0, f"{account.expected} tests expected"),
        CheckResult("complete", not too_little, "; ".join(too_little) or "enough was tested"),
        CheckResult("all_passed", not bad, ", ".join(bad) or "nothing failed"),
        _collected_check(workspace, account),
    ]
