"""Read what the page of one build needs: its manifests and tests, the builds before it, its causes and its cards' work.

What cannot be read is logged and shown as unreadable.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from accel_ci.errors import AccelCiError
from accel_ci.hud.build_page import SLOWEST, BuildFacts
from accel_ci.hud.changes import Changes, Identity, find_changes
from accel_ci.hud.gather import queued_seconds, read_failures_of_stop, read_record
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


class Failures:
    """The tests that failed in builds, each build read once."""

    def __init__(self, results: ResultsStore) -> None:
        self.results = results
        self._found: dict[Build, list[Identity]] = {}

    def of(self, summary: BuildSummary) -> list[Identity]:
        """The tests that failed in a build, by suite and test. Raises `AccelCiError` when its results cannot be read."""
        build = summary.build
        if build not in self._found:
            has_any = summary.counts.get("failed", 0) > 0
            bad = bad_tests_in_brief(self.results, build, tuple(summary.suites)) if has_any else []
            self._found[build] = [verdict.identity for verdict in bad if verdict.verdict == "failed"]
        return self._found[build]


def gather_build(
    workspace: Workspace,
    failures: Failures,
    revisions: Sequence[RevisionBuilds],
    own: RevisionBuilds,
    summary: BuildSummary,
) -> BuildFacts:
    """Read the facts of a build of the revision `own`; `revisions` are all that are shown."""
    manifests, build, results = workspace.manifests, summary.build, failures.results
    before = list(islice(_since_green(earlier_builds(revisions, own, summary)), MOST_BEFORE + 1))
    record = read_record(manifests, build)
    tests, changes, timeline = read_failures_of_stop(workspace, record), None, None
    if record.ledger is not None:
        suites = tuple(record.ledger.suites)
        try:
            tests = BuildTests(tuple(bad_tests(results, build, suites, SLOWEST)))
            timeline = _read_timeline(results, record)
        except AccelCiError as error:
            _LOG.warning("the attempts of %s cannot be read: %s", build.name, error)
    if tests is not None and record.ledger is not None and before:
        try:
            changes = _read_changes(failures, build, set(record.ledger.suites), tests, before)
        except AccelCiError as error:
            _LOG.warning("%s cannot be compared with the builds before: %s", build.name, error)
    runs = tuple(sorted({run.run for run in manifests.last_runs(build).values()}))
    return BuildFacts(
        record, own.revision, own.trigger, own.seen_at, tests, changes, read_causes(workspace, build), timeline,
        before[0].build if before else None, summary.speed, queued_seconds(manifests, build), runs,
    )  # fmt: skip


def _since_green(builds: Iterator[BuildSummary]) -> Iterator[BuildSummary]:
    """The builds up to the first green one, with it."""
    for summary in builds:
        yield summary
        if summary.is_green:
            return


def _read_changes(
    failures: Failures, build: Build, suites: Collection[str], tests: BuildTests, before: Sequence[BuildSummary]
) -> Changes:
    failing = [verdict.identity for verdict in tests.verdicts if verdict.verdict == "failed"]
    last, *older = before
    then = [[identity for identity in failures.of(one) if identity[0] in suites] for one in (last, *older)]
    passed = newly_passing(failures.results, last.build, build) if then[0] else []
    fixed = [(change.suite, change.test) for change in passed if change.suite in suites]
    green = before[-1].build.revision if before[-1].is_green else None
    return find_changes(failing, (last.build.revision, then[0]), green, then[1:], fixed)


def _read_timeline(results: ResultsStore, record: BuildRecord) -> Timeline | None:
    device = record.device_test_results
    if device is None or not device.cards:
        return None
    cards = [card.card for card in shown_cards(device.cards)]
    slices = slices_for(len(cards))
    work = card_work(results, record.build, device.suites, cards, device.makespan_s, slices)
    return make_timeline(device.cards, work, slices)
