"""Make the quality report: the levels, by the jobs of the last weeks, and the tests that became worse."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from accel_ci.ledger.status import shortcomings
from accel_ci.model import INFORMATIVE, Build, Ledger, Revision
from accel_ci.pipelines import LEDGER, REVISION
from accel_ci.quality.flakiness import Flakiness
from accel_ci.quality.grid import Point
from accel_ci.quality.judgement import finished_builds, read_causes
from accel_ci.quality.levels import TENURE_DAYS, Job, LevelReport, Outcome, judge_levels
from accel_ci.quality.trends import TRENDS, Trends, find_trends
from accel_ci.source.revision import tests_upstreams_change
from accel_ci.workspace import Workspace

REPORT = "quality_report"
"""The manifest of the report."""


def make_report(workspace: Workspace, flakiness: Flakiness, now: datetime) -> LevelReport:
    """Judge the levels as of now."""
    quality = workspace.project.settings.quality
    flaky = len({(each.suite, each.test) for each in flakiness.flaky}), flakiness.tests
    return judge_levels(jobs_until(workspace, now), now.date(), flaky, quality.level, quality.level_since)


def update_trends(workspace: Workspace, now: datetime) -> Trends:
    """Find the trends of all variants as of now, and keep them."""
    lines: dict[str, list[Point]] = {}
    for each in finished_builds(workspace, now):
        if each.point.is_on_line:
            lines.setdefault(each.build.variant, []).append(each.point)
    found = replace(find_trends(workspace.results, list(lines.values())), day=now.date())
    workspace.manifests.write(workspace.manifests.path(TRENDS), found)
    return found


def daily_trends(workspace: Workspace, now: datetime) -> Trends:
    """Return today's trends, found by the first build of the day: they change slowly, and cost seconds."""
    kept = workspace.manifests.read_history(workspace.manifests.path(TRENDS), Trends)
    return kept if kept is not None and kept.day == now.date() else update_trends(workspace, now)


def jobs_until(workspace: Workspace, now: datetime) -> list[Job]:
    """Return the builds of the last weeks that have ended, or were given up, the newest first."""
    manifests, found = workspace.manifests.at_one_moment(), list[Job]()
    for build in manifests.list_builds():
        revision = manifests.read_history(manifests.path(REVISION, build.revision), Revision)
        if revision is None or revision.trigger in ("manual", *INFORMATIVE):
            continue
        if revision.trigger == "pr" and not tests_upstreams_change(revision):  # it tells of its author's change alone
            continue
        if now - revision.created_at > timedelta(days=TENURE_DAYS):
            break
        runs = manifests.last_runs(build)
        ledger = manifests.read_history(manifests.path(LEDGER, build.revision, build.variant), Ledger)
        reported = ledger is not None and any(run.reported for run in runs.values())
        if not runs or (not reported and any(manifests.has_run(pipeline, build) for pipeline in runs)):
            continue
        ended = max((run.ended_at for run in runs.values() if run.ended_at is not None), default=now)  # it is ending now
        first = min(runs.values(), key=lambda run: run.asked_at)
        seconds = (ended - first.asked_at).total_seconds() if reported else None
        queued = (first.started_at - first.asked_at).total_seconds() if first.started_at is not None else None
        outcome, upstream = _outcome(workspace, build, ledger if reported else None)
        found.append(Job(build.name, revision.trigger, revision.created_at, outcome, seconds, queued, upstream))
    return found


def _outcome(workspace: Workspace, build: Build, ledger: Ledger | None) -> tuple[Outcome, bool]:
    """Return the end of a job, and whether all that failed is upstream's."""
    if ledger is None:
        return "unfinished", False
    if not shortcomings(ledger):
        return "passed", False
    causes = read_causes(workspace, build)
    blamed = {blame.cause for blame in causes.blames if not blame.retried} if causes is not None else set()
    if not ledger.counts.get("failed", 0) or blamed == {"infra"}:
        lost = ledger.counts.get("infra", 0) + ledger.counts.get("not_run", 0)
        return ("infra" if lost or blamed == {"infra"} else "failed"), False
    return "failed", bool(blamed) and blamed <= {"upstream", "infra"}
