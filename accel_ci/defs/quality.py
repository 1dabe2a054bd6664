"""The assets rebuilt from all results after each ledger: flakiness, coverage, incidents, the HUD. Not partitioned."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import dagster as dg
from filelock import FileLock
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from accel_ci.bridges.build_answer import ANSWER, answer_of, to_document
from accel_ci.config.settings import Settings
from accel_ci.defs.location import asset_key
from accel_ci.defs.metadata import build_link, redacted, table
from accel_ci.defs.partitions import build_of, build_of_run, builds, partition_key
from accel_ci.defs.stage import manifest_type
from accel_ci.defs.turn_at_build import pipelines_of_run
from accel_ci.hud.data.update import state_folder
from accel_ci.hud.serve import DEFAULT_ADDRESS
from accel_ci.hud.site import write_site
from accel_ci.model import Ledger
from accel_ci.pipelines import LEDGER
from accel_ci.progress import Progress
from accel_ci.pull_requests.progress import look_at_build
from accel_ci.quality.current_missed import MissReport, measures_misses, update_missed
from accel_ci.quality.current_quarantine import QUARANTINE, QuarantineState, publish_feeds, update_quarantine
from accel_ci.quality.feeds import feed_fault
from accel_ci.quality.flakiness import Flakiness, measure
from accel_ci.quality.judgement import INCIDENTS, Causes, Incidents, judge_new_builds, read_causes
from accel_ci.quality.levels import LevelReport, shown
from accel_ci.quality.plot import plot_causes
from accel_ci.quality.report import REPORT, daily_trends, make_report
from accel_ci.ramp.coverage import Counts, CoverageReport
from accel_ci.ramp.current import COVERAGE, current_coverage
from accel_ci.ramp.plot import plot_trend
from accel_ci.storage.shared_lease import TurnLostError
from accel_ci.workspace import Workspace

QUALITY = ("flakiness", "coverage", "incidents", "quarantine", "quality_report", "hud")
"""The names of the assets."""


def assets_after(settings: Settings, stages: Sequence[str]) -> tuple[str, ...]:
    """Return the assets that a run of some stages makes: these, the ledger, and what is made anew after each build."""
    gate = (quality_gate.__name__,) if settings.fail_run_on else ()
    return (*stages, LEDGER, *QUALITY, *gate)


_STALE = timedelta(days=3)
"""Without a build for so long, the assets are stale: an outage that lasts longer costs a backend its level."""

_MOST_FLAKY = 0.05
"""The share of flaky tests that PyTorch's accelerator group allows."""


def quality_assets(workspace: Workspace) -> list[dg.AssetsDefinition]:
    """Make the assets."""
    owners = list(workspace.project.settings.backend.owners)
    assets = [
        dg.asset(
            group_name="quality",
            owners=owners,
            deps=deps,
            kinds={kind},
            check_specs=[dg.AssetCheckSpec(check, asset=work.__name__) for check in checks],
            # Of an asset with checks, Dagster does not take the type from the annotation.
            dagster_type=manifest_type(kept) if kept is not None else None,
            freshness_policy=dg.FreshnessPolicy.time_window(fail_window=_STALE),
        )(work)
        for work, kind, deps, kept, checks in (
            (flakiness, "duckdb", [LEDGER], Flakiness, ["few_flaky_tests"]),
            (coverage, "duckdb", [LEDGER], None, []),
            (incidents, "python", [LEDGER], None, []),
            (quarantine, "python", [INCIDENTS], QuarantineState, ["feeds_can_be_used"]),
            (quality_report, "python", [INCIDENTS], LevelReport, ["level_is_held"]),
            (hud, "html", [COVERAGE, QUARANTINE, REPORT], None, []),
        )
    ]
    settings = workspace.project.settings
    if settings.fail_run_on:
        deps, partitions = [hud.__name__], builds(settings)
        make = dg.asset(group_name="quality", owners=owners, deps=deps, kinds={"python"}, partitions_def=partitions)
        assets.append(make(quality_gate))
    return assets


def flakiness(workspace: dg.ResourceParam[Workspace], progress: dg.ResourceParam[Progress]) -> dg.MaterializeResult:
    """Tests that both passed and failed in one build, over the window, with the interval of their rate."""
    with progress.step("flakiness") as step:
        found = current_flakiness(workspace)
        step.note(f"{len(found.flaky)} of {found.tests} tests are flaky")
    rows = [
        [f.variant, f.suite, f.test, f.flaky_builds, f.builds, f"{f.rate:.1%}", f"{f.rate_low:.1%} to {f.rate_high:.1%}"]
        for f in found.flaky
    ]
    worst = table(["variant", "suite", "test", "flaky builds", "builds", "rate", "95 % interval"], rows)
    counts = {"tests": found.tests, "flaky": len(found.flaky), "window_days": found.window_days}
    share = len({(each.suite, each.test) for each in found.flaky}) / max(1, found.tests)
    check = _warning("few_flaky_tests", share < _MOST_FLAKY, f"{share:.1%} of {found.tests:,} tests are flaky")
    return dg.MaterializeResult(value=found, metadata={**counts, "worst": worst}, check_results=[check])


def coverage(
    workspace: dg.ResourceParam[Workspace], progress: dg.ResourceParam[Progress]
) -> dg.MaterializeResult[CoverageReport]:
    """The tests in scope, those enabled and those that pass: by reason, op, dtype and file, and over the builds."""
    with progress.step("coverage") as step:
        report = current_coverage(workspace)
        shares = [f"{one.total.share:.1%} of {one.total.in_scope:,} in scope are enabled" for one in report.latest]
        step.note("; ".join(shares) or "no build has a table of scope yet")
    return dg.MaterializeResult(value=report, metadata=redacted(coverage_metadata(workspace, report)))


def coverage_metadata(workspace: Workspace, report: CoverageReport) -> dict[str, Any]:
    """Describe the coverage of the first variant that has any, with a plot of its trend."""
    if not report.latest:
        return {"coverage": "no build has a table of scope yet"}
    newest = report.latest[0]
    total, trend = newest.total, report.of_variant(newest.build.variant)
    plot = plot_trend(trend, workspace.project.settings.ramp.stages)
    columns = ["in scope", "enabled", "passing"]

    def counts(of: dict[str, Counts]) -> list[list[Any]]:
        """The rows of a table, those with most tests that are not enabled first."""
        ordered = sorted(of.items(), key=lambda item: (item[1].enabled - item[1].in_scope, item[0]))
        return [[name, each.in_scope, each.enabled, each.passing] for name, each in ordered]

    return {
        "build": newest.build.name,
        "trend": dg.MetadataValue.md(f"![Shares of the tests in scope]({plot})"),
        "enabled_share": round(total.share, 4),
        "passing_share": round(total.passing_share, 4),
        "collected": total.collected,
        "in_scope": total.in_scope,
        "enabled": total.enabled,
        "passing": total.passing,
        "ops": len(newest.ops),
        "ops_enabled": newest.ops_enabled,
        "reasons": table(["reason", "tests"], newest.reasons.items()),
        "by_suite": table(["suite", *columns], counts(newest.suites)),
        "by_op": table(["op", *columns], counts(newest.ops)),
        "by_dtype": table(["dtype", *columns], counts(newest.dtypes)),
        "by_file": table(["file", *columns], counts(newest.files)),
    }


def incidents(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace], progress: dg.ResourceParam[Progress]
) -> dg.MaterializeResult[Incidents]:
    """The causes of the failures of all builds: infrastructure, flaky tests, upstream, the backend, or unknown."""
    with progress.step("incidents") as step:
        found = judge_new_builds(workspace, datetime.now(timezone.utc), step)
        now = [incident for incident in found.incidents if incident.state != "fixed"]
        counts = Counter(incident.cause for incident in now)
        step.note(", ".join(f"{count} {cause}" for cause, count in counts.most_common()) or "no failures to explain")
    build = build_of_run(context.run)
    if build is not None and (causes := read_causes(workspace, build)) is not None:
        context.log_event(_observation(workspace, causes))
    rows = [
        [
            one.cause, one.state, len(one.now), one.first, one.last, f"{one.probability:.0%}", one.owner or "", one.title,
            one.sentence,
        ]
        for one in now
    ]  # fmt: skip
    columns = ["cause", "state", "tests", "first seen", "last seen", "probability", "owner", "incident", "in words"]
    plot = plot_causes([(night.revision, night.counts) for night in found.nights])
    metadata = {
        "trend": dg.MetadataValue.md(f"![Failures by cause]({plot})"),
        "open": len(now),
        **{f"open_{cause}": count for cause, count in counts.items()},
        "now": table(columns, rows),
    }
    if (answer := _answer(workspace, context.run)) is not None:
        metadata[ANSWER] = answer
    return dg.MaterializeResult(value=found, metadata=redacted(metadata))


def _answer(workspace: Workspace, run: dg.DagsterRun) -> str | None:
    """Return the answer to a job of another CI system that waits for a run; None for a run of no or several pipelines."""
    of_run = [(pipeline, build) for _, pipeline, build in pipelines_of_run(workspace, run)]
    if len(of_run) != 1:
        return None
    tested = look_at_build(workspace, *of_run[0], is_over=True)
    return to_document(answer_of(tested)) if tested.ledger is not None else None


def _observation(workspace: Workspace, causes: Causes) -> dg.AssetObservation:
    """Add the causes of a build's failures to the page of its ledger, which was made before they were known."""
    rows = [
        [one.cause, one.suite, one.test, f"{one.probability:.0%}", one.since.revision if one.since else "", one.sentence]
        for one in sorted(causes.blames, key=lambda blame: (blame.cause, blame.suite, blame.test))
    ]
    metadata = {
        "page": build_link(workspace, causes.build),
        **{f"failures_{cause}": count for cause, count in causes.counts().items()},
        "causes": table(["cause", "suite", "test", "probability", "since", "in words"], rows),
    }
    ledger_key = asset_key(workspace.project.settings.location, LEDGER)
    return dg.AssetObservation(ledger_key, partition=partition_key(causes.build), metadata=redacted(metadata))


def quarantine(workspace: dg.ResourceParam[Workspace], progress: dg.ResourceParam[Progress]) -> dg.MaterializeResult:
    """The flaky tests that gate nothing or do not run: people's decisions, and those of the rule."""
    with progress.step("quarantine") as step:
        now = datetime.now(timezone.utc)
        state = update_quarantine(workspace, now)
        feeds = publish_feeds(workspace, state, now)
        hidden = f"; {len(state.debt)} of them have been broken meanwhile" if state.debt else ""
        step.note(f"{state.count('muted')} muted, {state.count('disabled')} disabled{hidden}")
    rows = [
        [one.suite, one.test, one.variant, one.state, one.by, str(one.since), str(one.expires), one.reason, one.owner or ""]
        for one in state.entries
    ]
    columns = ["suite", "test", "variant", "state", "by", "since", "expires", "reason", "owner"]
    debt = [[one.suite, one.test, ", ".join(one.builds)] for one in state.debt]
    metadata = {
        "muted": state.count("muted"),
        "disabled": state.count("disabled"),
        "entries": table(columns, rows),
        "over_budget": table(["test"], [[words] for words in state.over_budget]),
        "debt": table(["suite", "test", "broken in"], debt),
        "feeds": table(["variant", "folder"], [[variant, str(folder)] for variant, folder in feeds.items()]),
    }
    faults = {variant: fault for variant, folder in feeds.items() if (fault := feed_fault(folder, now)) is not None}
    words = "; ".join(f"{variant}: {fault}" for variant, fault in faults.items()) or "all feeds are whole"
    check = _warning("feeds_can_be_used", not faults, words)
    return dg.MaterializeResult(value=state, metadata=redacted(metadata), check_results=[check])


def quality_report(
    flakiness: Flakiness, workspace: dg.ResourceParam[Workspace], progress: dg.ResourceParam[Progress]
) -> dg.MaterializeResult:
    """The criteria of the relay's levels and of the accelerator group: each figure with its interval and its goal."""
    with progress.step("quality_report") as step:
        now = datetime.now(timezone.utc)
        report, trends = make_report(workspace, flakiness, now), daily_trends(workspace, now)
        met = sum(figure.met is True for figure in report.figures)
        missed = update_missed(workspace, now) if measures_misses(workspace) else None
        step.note(f"{met} of {len(report.figures)} criteria are met; {report.advice}")
    rows = [
        [figure.name, shown(figure), figure.goal, {True: "met", False: "not met", None: "no data"}[figure.met]]
        for figure in report.figures
    ]
    figures = table(["criterion", "value and 95 % interval", "goal", "state"], rows)
    slower = [[one.variant, one.suite, one.test, one.before_s, one.after_s, round(one.ratio, 2)] for one in trends.slower]
    worse = [
        [one.variant, one.suite, one.test, f"{one.before:.1%}", f"{one.after:.1%}", one.since or ""] for one in trends.worse
    ]
    metadata = {
        "advice": report.advice,
        "criteria": figures,
        "slower": table(["variant", "suite", "test", "seconds before", "seconds after", "ratio"], slower),
        "fail_more_often": table(["variant", "suite", "test", "before", "after", "since"], worse),
        **(_miss_metadata(missed) if missed is not None else {}),
    }
    falling = [figure.name for figure in report.demotion if figure.met is False]
    check = _warning("level_is_held", not falling, f"not met: {', '.join(falling)}" if falling else report.advice)
    return dg.MaterializeResult(value=report, metadata=redacted(metadata), check_results=[check])


def _miss_metadata(report: MissReport) -> dict[str, Any]:
    """Describe what the tests chosen by changes would have missed, and what pull requests did miss."""
    rows = [
        [one.build.name, "..".join(one.commits), test.suite, test.test, test.op or "", test.why]
        for one in report.builds
        for test in one.missed
    ]
    return {
        "missed_by_changes": report.words,
        "missed_by_pull_requests": report.pull_words or "no data",
        "missed_tests": table(["build", "commits", "suite", "test", "op", "why"], rows),
    }


def _warning(name: str, passed: bool, words: str) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(check_name=name, passed=passed, severity=dg.AssetCheckSeverity.WARN, description=words)


def hud(
    flakiness: Flakiness, workspace: dg.ResourceParam[Workspace], progress: dg.ResourceParam[Progress]
) -> dg.MaterializeResult[None]:
    """The static page that shows every build to everybody."""
    with progress.step("hud") as step:
        page = refresh_hud(workspace, flakiness)
        step.note(page)
    return dg.MaterializeResult(metadata=hud_links(workspace))


def hud_links(workspace: Workspace) -> dict[str, dg.MetadataValue]:
    """Link to the HUD as `accel-ci dev` serves it: browsers open no file from a page of a server. Name the file, too."""
    known = workspace.addresses
    address = known.hud if known else DEFAULT_ADDRESS
    return {
        "page": dg.MetadataValue.url(address),
        "file": dg.MetadataValue.path(workspace.manifests.share.location(workspace.hud / "index.html")),
    }


def quality_gate(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace], progress: dg.ResourceParam[Progress]
) -> dg.MaterializeResult[None]:
    """The end of the run: it fails if a test has a verdict in `fail_run_on`. By now everything is stored and shown."""
    build, manifests = build_of(context), workspace.manifests
    with progress.step("quality_gate"):
        ledger = manifests.read(manifests.path(LEDGER, build.revision, build.variant), Ledger)
        chosen = () if ledger.informative else workspace.project.settings.fail_run_on
        counts = {**ledger.counts, "failed": ledger.counts.get("failed", 0) - len(ledger.muted)}
        found = [f"{count:,} {verdict.replace('_', ' ')}" for verdict in chosen if (count := counts.get(verdict, 0))]
        if found:
            text = (
                f"{', '.join(found)}: the setting 'fail_run_on' makes the run fail; `accel-ci results failures {build.name}`"
            )
            raise dg.Failure(f"{text} lists them", allow_retries=False)
    return dg.MaterializeResult(metadata={str(verdict): ledger.counts.get(verdict, 0) for verdict in chosen})


def current_flakiness(workspace: Workspace) -> Flakiness:
    """Measure flakiness as of now."""
    window = workspace.project.settings.quality.window_days
    return measure(workspace.trusted_results, datetime.now(timezone.utc).date(), window)


@retry(retry=retry_if_exception_type(TurnLostError), stop=stop_after_attempt(3), reraise=True)
def refresh_hud(workspace: Workspace, flakiness: Flakiness) -> str:
    """Write the HUD anew and return its address. Of several writings, the page that is gathered last is written last.

    The first page is shared after the others, and then what is kept for the next writing, which trusts in the pages.
    """
    share, hud, state = workspace.manifests.share, workspace.hud, state_folder(workspace.hud)
    with FileLock(hud.with_suffix(".lock")), share.turn(hud.with_suffix(".turn")) as check:
        share.bring(state, hud)
        page = write_site(workspace, flakiness, hud, now=datetime.now(timezone.utc))
        share.send_folder(hud, page.name, check)
        share.send_folder(state, check=check)
        return page.as_uri()
