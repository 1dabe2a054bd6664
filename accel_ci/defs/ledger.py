"""Where the pipelines meet: the ledger of a build."""

import dagster as dg

from accel_ci.defs.manifest_io import produces
from accel_ci.defs.metadata import check_result, table
from accel_ci.defs.partitions import build_of, builds, of_revision
from accel_ci.defs.stage import stage
from accel_ci.defs.workspace import Workspace
from accel_ci.model import VERDICTS, Build, CheckResult, DeviceTestResults, Ledger, Revision, TestSelection
from accel_ci.progress import Progress
from accel_ci.results.ledger import close_ledger, read_verdicts
from accel_ci.results.verdicts import check_balance, collected_drop, shortcomings

GROUP = "results"


def ledger_asset(workspace: Workspace) -> dg.AssetsDefinition:
    """The ledger, partitioned as the builds are."""
    settings = workspace.project.settings

    @dg.asset(
        group_name=GROUP,
        owners=list(settings.backend.owners),
        partitions_def=builds([variant.name for variant in settings.variants]),
        ins={"revision": of_revision()},
        kinds={"parquet", "duckdb"},
        dagster_type=produces(Ledger),
        check_specs=[
            dg.AssetCheckSpec(
                "balanced", asset="ledger", blocking=True, description="The verdicts sum to the expected tests."
            ),
            dg.AssetCheckSpec("not_empty", asset="ledger", blocking=True, description="A build without tests is no pass."),
            dg.AssetCheckSpec("collected", asset="ledger", description="No test vanished since the build before."),
            dg.AssetCheckSpec("all_passed", asset="ledger", description="No test failed, none was lost."),
        ],
    )
    def ledger(
        context: dg.AssetExecutionContext,
        revision: Revision,
        smoke_results: DeviceTestResults,
        test_selection: TestSelection,
        device_test_results: DeviceTestResults,
        progress: dg.ResourceParam[Progress],
    ) -> dg.MaterializeResult:
        """The account of the build: every expected test has exactly one verdict, and every attempt is in the store."""
        wanted = [name for stage in ("smoke", "device") for name in settings.suites_of(revision.trigger, stage)]
        with stage(context, workspace, progress) as step:
            account = close_ledger(
                build_of(context),
                revision.created_at.date(),
                [smoke_results, device_test_results],
                wanted,
                workspace.artifacts,
                workspace.results,
            )
            check_balance(account.expected, account.counts)
            step.note(", ".join(f"{count} {verdict}" for verdict, count in account.counts.items() if count))
        return dg.MaterializeResult(
            value=account,
            data_version=dg.DataVersion(account.verdicts.sha256),
            check_results=[
                *(check_result(check, warn=check.name == "all_passed") for check in _checks(account)),
                check_result(_collected_check(workspace, build_of(context), test_selection)),
            ],
            metadata={
                "expected": account.expected,
                **{str(verdict): count for verdict, count in account.counts.items()},
                "infra_attempts": account.infra_attempts,
                "missing_suites": table(["suite"], [[suite] for suite in account.missing_suites]),
                "unexpected": table(["test"], [[test] for test in account.unexpected]),
                "suites": table(
                    ["suite", *VERDICTS],
                    [[suite, *(counts[verdict] for verdict in VERDICTS)] for suite, counts in account.suites.items()],
                ),
                "not_passed": table(
                    ["suite", "test", "verdict", "attempts", "message"],
                    [
                        [v.suite, v.test, v.verdict, ", ".join(v.attempts), v.message or ""]
                        for v in read_verdicts(account, workspace.artifacts)
                        if v.verdict in ("failed", "flaky", "infra", "not_run")
                    ],
                ),
            },
        )

    return ledger


def _collected_check(workspace: Workspace, build: Build, selection: TestSelection) -> CheckResult:
    before = workspace.manifests.previous("test_selection", build, TestSelection)
    reason = workspace.project.settings.quality.fewer_tests_reason
    fault = collected_drop(selection.collected, before.collected if before else None, reason)
    summary = f"{selection.collected} collected, {before.collected if before else 'none'} in the build before"
    return CheckResult("collected", fault is None, fault or summary)


def _checks(account: Ledger) -> list[CheckResult]:
    total, bad = sum(account.counts.values()), shortcomings(account)
    return [
        CheckResult("balanced", total == account.expected, f"{account.expected} expected, {total} accounted for"),
        CheckResult("not_empty", account.expected > 0, f"{account.expected} tests expected"),
        CheckResult("all_passed", not bad, ", ".join(bad) or "nothing failed"),
    ]
