"""Read what the page of one build needs: its manifests and tests, the builds before it, its causes and its cards' work.

What cannot be read is logged and shown as unreadable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice

from accel_ci.errors import AccelCiError
from accel_ci.hud.build_page import SLOWEST, BuildFacts
from accel_ci.hud.changes import Changes, Identity, find_changes
from accel_ci.hud.gather import queued_seconds, read_record, read_smoke_failures
from accel_ci.hud.records import BuildRecord, BuildTests
from accel_ci.hud.summary import BuildSummary, RevisionBuilds, earlier_builds
from accel_ci.hud.timeline import Timeline, make_timeline, shown_cards, slices_for
from accel_ci.model import Build
from accel_ci.quality.judgement import read_causes
from accel_ci.results.questions import bad_tests, bad_tests_in_brief, card_work, newly_passing
from accel_ci.results.store import ResultsStore
from accel_ci.workspace import Workspace

_LOG = logging.getLogger(__name__)

MOST_BEFORE = 10
"""So many builds between the last green one and a build are looked at for tests that return."""


def gather_build(
    workspace: Workspace, revisions: Sequence[RevisionBuilds], own: RevisionBuilds, summary: BuildSummary
) -> BuildFacts:
    """Read the facts of a build of the revision `own`; `revisions` are all that are shown."""
    manifests, build = workspace.manifests, summary.build
    before = list(islice(_since_green(earlier_builds(revisions, own, summary)), MOST_BEFORE + 1))
    oldest = min([own, *(one for one in revisions if before and one.key == before[-1].build.revision)], key=_age)
    results = workspace.results.around(oldest.seen_at.date())
    record = read_record(manifests, build)
    tests, changes, timeline = read_smoke_failures(workspace, record), None, None
    if record.ledger is not None:
        suites = tuple(record.ledger.suites)
        try:
            tests = BuildTests(tuple(bad_tests(results, build, suites, SLOWEST)))
            timeline = _read_timeline(results, record)
        except AccelCiError as error:
            _LOG.warning("the attempts of %s cannot be read: %s", build.name, error)
    if tests is not None and record.ledger is not None and before:
        try:
            changes = _read_changes(results, build, tuple(record.ledger.suites), tests, before)
        except AccelCiError as error:
            _LOG.warning("%s cannot be compared with the builds before: %s", build.name, error)
    runs = tuple(sorted({run.run for run in manifests.last_runs(build).values()}))
    return BuildFacts(
        record, own.revision, own.trigger, own.seen_at, tests, changes, read_causes(workspace, build), timeline,
        before[0].build if before else None, summary.speed, queued_seconds(manifests, build), runs,
    )  # fmt: skip


def _age(revision: RevisionBuilds) -> datetime:
    return revision.seen_at


def _since_green(builds: Iterator[BuildSummary]) -> Iterator[BuildSummary]:
    """The builds up to the first green one, with it."""
    for summary in builds:
        yield summary
        if summary.is_green:
            return


def _read_changes(
    results: ResultsStore, build: Build, suites: tuple[str, ...], tests: BuildTests, before: Sequence[BuildSummary]
) -> Changes:
    failing = [(verdict.suite, verdict.test) for verdict in tests.verdicts if verdict.verdict == "failed"]
    last, *older = before

    def failed(summary: BuildSummary) -> list[Identity]:
        if not summary.counts.get("failed"):
            return []
        found = bad_tests_in_brief(results, summary.build, suites)
        return [(verdict.suite, verdict.test) for verdict in found if verdict.verdict == "failed"]

    fixed = [
        (change.suite, change.test)
        for change in (newly_passing(results, last.build, build) if last.counts.get("failed") else ())
        if change.suite in suites
    ]
    green = before[-1].build.revision if before[-1].is_green else None
    return find_changes(failing, (last.build.revision, failed(last)), green, map(failed, older), fixed)


def _read_timeline(results: ResultsStore, record: BuildRecord) -> Timeline | None:
    device = record.device_test_results
    if device is None or not device.cards:
        return None
    cards = [card.card for card in shown_cards(device.cards)]
    slices = slices_for(len(cards))
    work = card_work(results, record.build, device.suites, cards, device.makespan_s, slices)
    return make_timeline(device.cards, work, slices)
