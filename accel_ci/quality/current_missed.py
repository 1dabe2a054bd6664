"""Judge what tests chosen by changes would have missed, for each new build of the line, and keep it: `quality/missed.json`.

A build is held against the tests that would have been chosen for the backend's commits since the build before, as a pull
request of those commits would have had them, by what was known then. Only new failures of the backend count that the quality
rules are sure of. A judgement is made once, and again when that of the failures changes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from accel_ci.errors import AccelCiError
from accel_ci.model import Build, Ledger, Revision, Source, TestSelection
from accel_ci.pipelines import LEDGER, REVISION, TEST_SELECTION
from accel_ci.progress import Step
from accel_ci.quality.causes import Blame, Identity
from accel_ci.quality.flakiness import wilson_interval
from accel_ci.quality.grid import LINE
from accel_ci.quality.judgement import Causes, read_causes
from accel_ci.ramp.missed import (
    JudgedBuild,
    MissedTest,
    MissSums,
    PullFailures,
    hold_against,
    hold_against_pulls,
    size_of,
    sum_up,
)
from accel_ci.ramp.pull_request import choose_by_change, tests_of_subset
from accel_ci.redaction import redact
from accel_ci.scope.selection import read_selection
from accel_ci.scope.table import read_scope
from accel_ci.source.changes import Commit, changes_between, changes_of_commit, commits_between
from accel_ci.source.revision import components_at_changes
from accel_ci.storage.revision_index import IndexedRevision
from accel_ci.workspace import Workspace

MISSED = "missed"
"""The manifest of the judgements."""

MOST_AT_ONCE = 5
"""So many builds are judged after a ledger, the newest first; `accel-ci ramp missed` judges all."""


_MOST_COMMITS = 200


@dataclass(frozen=True)
class MissReport:
    """The judged builds of the last `window_days`, the newest first."""

    window_days: int = 0
    builds: tuple[JudgedBuild, ...] = ()

    @property
    def sums(self) -> MissSums:
        """Their sums."""
        return sum_up(self.builds)

    @property
    def words(self) -> str:
        """The miss rate in a sentence, with its interval and the size of what was chosen."""
        sums = self.sums
        if not sums.builds:
            return "no data: no build with a change of the backend was judged"
        share, time = sums.chosen_share, sums.time_share
        sizes = [
            f"{each:.1%} of the {what}" for each, what in ((share, "tests"), (time, "card-seconds")) if each is not None
        ]
        chosen = f"{sums.builds:,} builds, for which {' and '.join(sizes) or 'no test'} would have run"
        if not sums.failures:
            return f"no data: the backend caused no new failure in {chosen}"
        return f"{rate_in_words(sums.missed, sums.failures)} missed, in {chosen}"

    @property
    def pull_words(self) -> str | None:
        """The same of the merged pull requests that ran a part of the tests; None where there is no failure to tell."""
        sums = self.sums
        if not sums.pull_failures:
            return None
        return f"{rate_in_words(sums.pull_missed, sums.pull_failures)} missed by what merged pull requests ran"


def rate_in_words(missed: int, failures: int) -> str:
    """Return a miss rate with its 95 % Wilson interval; never one of nothing."""
    if not failures:
        return "no data: 0 of 0"
    low, high = wilson_interval(missed, failures)
    of = f"{missed:,} of {failures:,} new failures"
    return f"{of} ({missed / failures:.1%}, 95 % interval {low:.1%} to {high:.1%})"


def read_missed(workspace: Workspace) -> MissReport:
    """Read what was judged; nothing before the first time."""
    return workspace.manifests.read_history(workspace.manifests.path(MISSED), MissReport) or MissReport()


def measures_misses(workspace: Workspace) -> bool:
    """Return whether builds are judged by themselves: where pull requests run a part of the tests, or it first."""
    return workspace.project.settings.jobs.pr.tests != "all"


def update_missed(
    workspace: Workspace, now: datetime, step: Step | None = None, most: int | None = MOST_AT_ONCE
) -> MissReport:
    """Judge the builds of the window that were not judged yet, or whose failures are judged anew, and keep what was found.

    At most `most` are judged, the newest first, and none after one whose commits cannot be read. Without `most`, all are,
    and those again that could not be judged.
    """
    days = workspace.project.settings.ramp.window_days
    since = now - timedelta(days=days)
    kept = {each.build: each for each in read_missed(workspace).builds if each.at >= since}
    line = [each for each in workspace.manifests.revisions() if each.trigger in LINE]
    found, judged = dict(kept), 0
    for causes, older in _to_judge(workspace, line, since):
        known = kept.get(causes.build)
        if known is not None and known.basis == _basis(causes) and not (most is None and known.problem):
            continue
        if (new := _judge(workspace, causes, older)) is None:
            continue
        found[causes.build] = new
        judged += 1
        if step is not None:
            step.advance(causes.build.name)
        if most is not None and (new.problem is not None or judged >= most):
            break
    builds = sorted(found.values(), key=lambda one: (one.at, one.build.name), reverse=True)
    report = MissReport(days, tuple(builds))
    workspace.manifests.write(workspace.manifests.path(MISSED), report)
    return report


def _to_judge(
    workspace: Workspace, line: Sequence[IndexedRevision], since: datetime
) -> Iterator[tuple[Causes, Sequence[IndexedRevision]]]:
    """Yield the causes of the builds of the window that have any, the newest first, with the revisions before."""
    for place, each in enumerate(line):
        if each.seen_at < since:
            return
        for variant in workspace.project.settings.variants:
            if (causes := read_causes(workspace, Build(each.key, variant.name))) is not None:
                yield causes, line[place + 1 :]


def _basis(causes: Causes) -> str:
    return hashlib.sha256(json.dumps(causes.judged_from, sort_keys=True).encode()).hexdigest()[:16]


def _judge(workspace: Workspace, causes: Causes, older: Sequence[IndexedRevision]) -> JudgedBuild | None:
    """Hold a build against the tests chosen for the change since the build before.

    None where there is none to hold it against, such as the first one, or the backend did not change.
    """
    build, manifests = causes.build, workspace.manifests
    revision = manifests.read_history(manifests.path(REVISION, build.revision), Revision)
    selection = _finished(workspace, build)
    if revision is None or revision.suites or selection is None:
        return None
    before = next((one for one in _builds_of(older, build.variant) if _finished(workspace, one) is not None), None)
    if before is None:
        return None
    try:
        return _Judgement(workspace, causes, revision, selection, before).judged()
    except AccelCiError as error:
        return JudgedBuild(build, revision.created_at, _basis(causes), before, problem=redact(str(error)))


def _builds_of(revisions: Sequence[IndexedRevision], variant: str) -> Iterator[Build]:
    return (Build(each.key, variant) for each in revisions)


def _finished(workspace: Workspace, build: Build) -> TestSelection | None:
    """The selection of a build that has a ledger and a table of scope; None for another one."""
    manifests = workspace.manifests
    selection = manifests.read_history(manifests.path(TEST_SELECTION, build.revision, build.variant), TestSelection)
    if selection is None or selection.scope is None:
        return None
    return selection if manifests.path(LEDGER, build.revision, build.variant).exists() else None


class _Judgement:
    """The judgement of one build."""

    def __init__(
        self, workspace: Workspace, causes: Causes, revision: Revision, selection: TestSelection, before: Build
    ) -> None:
        self._workspace, self._causes, self._revision, self._before = workspace, causes, revision, before
        self._selection = selection

    def judged(self) -> JudgedBuild | None:
        """Return the judgement; None where no commit is between the builds. Raises `AccelCiError`."""
        workspace, build, revision, at = self._workspace, self._causes.build, self._revision, self._revision.created_at
        if self._selection.scope is None:
            return None
        left_out: Counter[str] = Counter()
        by_base: defaultdict[Build, list[Blame]] = defaultdict(list)
        for blame in self._new_failures(left_out):
            by_base[blame.last_good or self._before].append(blame)
        bases = {base: self._backend_of(base) for base in {self._before, *by_base}}
        usual = bases[self._before]
        if usual.label == revision.backend.label and not by_base:
            return None
        found, missed, sizes, words = Counter[str](), list[MissedTest](), (0, 0, 0.0, 0.0), "no commit of the backend"
        commits: tuple[Commit, ...] = ()
        pulls = PullFailures()
        selected = read_selection(self._selection.tests, workspace.artifacts)
        scope = read_scope(self._selection.scope, workspace.artifacts)
        for base, source in bases.items():
            if source.label == revision.backend.label:
                left_out["no commit since it passed"] += len(by_base[base])
                continue
            files = changes_between(workspace.project, source, revision.backend).files
            choice, known = choose_by_change(workspace, build.variant, selected, scope, files, at, known_before=True)
            tests = {(test.suite, test.test): test for test in known if test.enabled}
            failures = {blame.identity for blame in by_base[base]} & tests.keys()
            left_out["no test to choose"] += len(by_base[base]) - len(failures)
            of_base, missed_of_base = hold_against(choice, tests, failures)
            found += of_base
            missed += missed_of_base
            if base == self._before:
                commits = commits_between(workspace.project, source, revision.backend)
                sizes, words = size_of(choice, known), choice.in_words(len(tests))
                pulls = self._hold_against_pulls(failures, commits)
        left = {why: count for why, count in left_out.items() if count}
        return JudgedBuild(
            build, at, _basis(self._causes), self._before, (usual.label, revision.backend.label), len(commits), words, None,
            *sizes, dict(found), tuple(missed), left, pulls,
        )  # fmt: skip

    def _new_failures(self, left_out: Counter[str]) -> Iterator[Blame]:
        """Yield the failures that began in this build by a change of the backend; others are counted by what they are."""
        build, manifests = self._causes.build, self._workspace.manifests
        ledger = manifests.read_history(manifests.path(LEDGER, build.revision, build.variant), Ledger)
        muted = set(ledger.muted) if ledger is not None else set()
        for blame in self._causes.blames:
            if blame.since is not None and blame.since.revision != build.revision:
                continue  # it began earlier
            if f"{blame.suite}: {blame.test}" in muted:
                left_out["in quarantine"] += 1
            elif blame.cause != "backend" or blame.retried:
                left_out[blame.cause] += 1
            elif blame.last_good is None:
                left_out["never passed before"] += 1
            else:
                yield blame

    def _backend_of(self, build: Build) -> Source:
        manifests = self._workspace.manifests
        return manifests.read(manifests.path(REVISION, build.revision), Revision).backend

    def _hold_against_pulls(self, failures: set[Identity], commits: Sequence[Commit]) -> PullFailures:
        """Hold the new failures against what the pull requests had run whose commits these are.

        A pull request is known by its own commit, by a merge of that, or by a commit that changes the same lines. Of many
        commits nothing is said.
        """
        workspace, variant = self._workspace, self._causes.build.variant
        if not failures or len(commits) > _MOST_COMMITS:
            return PullFailures()
        by_sha: dict[str, Build] = {}
        by_change: dict[str, Build] = {}
        selections: dict[Build, TestSelection] = {}
        earliest = self._revision.created_at - timedelta(days=workspace.project.settings.ramp.window_days)
        for each in workspace.manifests.revisions():
            if each.trigger != "pr" or not earliest <= each.seen_at < self._revision.created_at:
                continue
            selection = _finished(workspace, build := Build(each.key, variant))
            if selection is None:
                continue
            revision = workspace.manifests.read(workspace.manifests.path(REVISION, each.key), Revision)
            if components_at_changes(workspace.project.settings, revision):  # the backend's commit is no pull request's
                continue
            selections[build] = selection
            by_sha.setdefault(str(revision.backend.sha), build)
            if selection.subset is not None and selection.subset.change is not None:
                by_change.setdefault(selection.subset.change, build)
        pulls: dict[str, tuple[str, frozenset[Identity] | None]] = {}
        for commit in commits if selections else ():
            own = (by_sha[sha] for sha in (commit.sha, *commit.parents[1:]) if sha in by_sha)
            merged = next(own, None)
            if merged is None and by_change and len(commit.parents) == 1:
                change = changes_of_commit(workspace.project, self._revision.backend, commit).digest
                merged = by_change.get(change)
            if merged is not None:
                selection = selections[merged]
                is_part = selection.subset is not None and not selection.subset.are_first
                ran = tests_of_subset(selection, workspace.artifacts) if is_part else None
                pulls[commit.sha] = merged.revision, ran
        return hold_against_pulls(failures, [commit.sha for commit in commits], pulls)


def of_variant(report: MissReport, variant: str) -> MissReport:
    """Return the judgements of a variant's builds."""
    return replace(report, builds=tuple(each for each in report.builds if each.build.variant == variant))
