"""The progress of the builds of a pull request, and what they are compared with: read for `answer`, which decides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType

from accel_ci.errors import AccelCiError
from accel_ci.hud.addresses import build_address
from accel_ci.ledger.activity import read_activity
from accel_ci.ledger.close import account_of_stage
from accel_ci.ledger.comparison import finished_before, target_of
from accel_ci.ledger.status import deviceless_shortcoming
from accel_ci.model import Build, DeviceTestResults, Ledger, Revision, TestSelection, Trigger, Verdict, trigger_of_key
from accel_ci.pipelines import DEVICELESS_RESULTS, LEDGER, REVISION, TEST_SELECTION, Pipeline
from accel_ci.pull_requests.answer import Base, Progress, Tested, sort_failures, untested
from accel_ci.pull_requests.watched import Head
from accel_ci.quality.causes import Identity
from accel_ci.quality.current_quarantine import muted_failures, quarantined
from accel_ci.quality.judgement import read_causes
from accel_ci.results.questions import bad_tests, bad_tests_in_brief
from accel_ci.source.changes import changes_of
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace

_BASE_TRIGGERS: tuple[Trigger, ...] = ("nightly", "main", "intraday")
_LOOKED_AT = 100
"""So many of the newest revisions are looked at for one of the merge base."""


class Bases:
    """The builds that those of pull requests are compared with, as they are when they are first asked for.

    `targets` has the branches that pull requests are for now, by the keys of their revisions; of others, it is as it was
    when the revision was made (see `Revision.target`).
    """

    def __init__(self, workspace: Workspace, targets: Mapping[str, str | None] = MappingProxyType({})) -> None:
        self._workspace, self._targets = workspace, targets

    def choose(self, ledger: Ledger, commit: str | None) -> Base:
        """Return the newest build of the merge base `commit` with all suites of a build, else the newest one before it.

        That is of the branch that the pull request is for. Of another branch than the configured one, any build of the
        merge base will do that ran all tests, such as that of the pull request which this one is stacked on.
        """
        target = self.target(ledger.build)
        for key, trigger in self._of_commit[commit] if commit is not None else ():
            build = Build(key, ledger.build.variant)
            if trigger not in _BASE_TRIGGERS and (target is None or self._ran_a_part(build)):
                continue
            found = self._ledger(build)
            if found is not None and ledger.suites.keys() <= found.suites.keys():
                return Base(commit, found.build, True, found.digest, target)
        before = finished_before(self._manifests, ledger, target)
        if before is None:
            return Base(commit, target=target)
        return Base(commit, before.build, False, before.digest, target)

    def target(self, build: Build) -> str | None:
        """Return the branch that the pull request of a build is for (see `Revision.target`)."""
        own = build.revision
        return self._targets[own] if own in self._targets else target_of(self._manifests, build)

    def is_current(self, base: Base, build: Build) -> bool:
        """Return whether a build of a pull request is still compared with the right one.

        A build of the merge base stays the right one, though a later one of the same commit may have another upstream.
        """
        if base.target != self.target(build):
            return False
        if base.build is not None and base.is_merge_base:
            found = self._ledger(base.build)
            return found is not None and found.digest == base.digest
        ledger = self._ledger(build) or _deviceless(self._workspace, build)
        return ledger is None or self.choose(ledger, base.commit) == base

    def _ran_a_part(self, build: Build) -> bool:
        """Return whether a build ran the tests that its change may concern, and no others."""
        path = self._manifests.path(TEST_SELECTION, build.revision, build.variant)
        selection = self._manifests.read_history(path, TestSelection)
        subset = selection.subset if selection is not None else None
        return subset is not None and subset.tests is not None and not subset.are_first

    def _ledger(self, build: Build) -> Ledger | None:
        return self._manifests.read_history(self._manifests.path(LEDGER, build.revision, build.variant), Ledger)

    @cached_property
    def _manifests(self) -> ManifestStore:
        return self._workspace.manifests.at_one_moment()

    @cached_property
    def _of_commit(self) -> defaultdict[str, list[tuple[str, Trigger]]]:
        """The newest revisions, and their triggers, by the commit of the backend that they test."""
        found: defaultdict[str, list[tuple[str, Trigger]]] = defaultdict(list)
        for each in self._manifests.revisions()[:_LOOKED_AT]:
            if each.trigger not in (*_BASE_TRIGGERS, "manual", "pr"):
                continue
            revision = self._manifests.read_history(self._manifests.path(REVISION, each.key), Revision)
            if revision is not None and revision.backend.sha is not None and not revision.backend.dirty:
                found[revision.backend.sha].append((each.key, each.trigger))
        return found


def look_at_builds(workspace: Workspace, head: Head, bases: Bases | None = None) -> list[Tested]:
    """Return how far each pipeline of each build of a pull request has come. Raises `AccelCiError`."""
    pipelines = [one for one in workspace.pipelines if any("pr" in job.triggers for job in one.jobs)]
    settings = workspace.project.settings
    if head.revision is None:
        [job] = [job for one in pipelines for job in one.jobs if "pr" in job.triggers][:1]
        return [
            Tested(one.name, variant, "waiting" if head.state == "waiting" else "queued")
            for one in pipelines
            for variant in job.variants(settings)
        ]
    builds = [Build(head.revision, variant) for variant in head.variants]
    for build in builds:
        workspace.manifests.bring(build)
    found = [look_at_build(workspace, pipeline, build, bases=bases) for build in builds for pipeline in pipelines]
    return [_before_the_label(one, head) for one in found]


def _before_the_label(tested: Tested, head: Head) -> Tested:
    """Say that a stranger's build whose deviceless suites have passed waits: for the label, or for its other suites."""
    if tested.progress != "stopped" or tested.deviceless is None or tested.closed:
        return tested
    return replace(tested, progress="waiting" if head.state == "waiting" else "queued")


def look_at_build(
    workspace: Workspace, pipeline: Pipeline, build: Build, *, is_over: bool = False, bases: Bases | None = None
) -> Tested:
    """Return how far a pipeline of a build has come. With `is_over`, the caller is its run, and has done all of its work.

    `bases` are those of now. Raises `AccelCiError`.
    """
    manifests, run = workspace.manifests, workspace.manifests.last_run(pipeline, build)
    addresses = workspace.project.settings.addresses
    page = f"{addresses.hud.rstrip('/')}/{build_address(build)}" if addresses is not None else None
    found = Tested(pipeline.name, build.variant, "queued", build, page=page)
    if run is None:
        return found
    activity = read_activity(manifests, build).get(pipeline.name, "")
    if not is_over and run.ended_at is None and manifests.has_run(pipeline, build):
        early = manifests.early_failure(build)
        return replace(found, progress="running", activity=f"{activity}; {early}" if early else activity)
    ledger = manifests.find(LEDGER, build, Ledger) if run.reported else None
    if ledger is None:  # that of an earlier run tells nothing of this one
        progress: Progress = "cancelled" if run.ending == "interrupted" else "stopped"
        stopped = replace(found, progress=progress, activity=activity)
        account = _deviceless(workspace, build) if progress == "stopped" and run.stage == DEVICELESS_RESULTS else None
        if account is None or (run.ending == "failed" and deviceless_shortcoming(account) is None):
            return stopped  # where the stage itself failed, the account is of an earlier run
        return _judged(workspace, build, replace(stopped, deviceless=account), account, bases)
    selection = manifests.find(TEST_SELECTION, build, TestSelection)
    ended = replace(
        found,
        progress="ended",
        ledger=ledger,
        shortcomings=untested(ledger),
        subset=selection.subset.words if selection is not None and selection.subset is not None else None,
    )
    return _judged(workspace, build, ended, ledger, bases)


def _judged(workspace: Workspace, build: Build, tested: Tested, account: Ledger, bases: Bases | None) -> Tested:
    """Add the failures of an account, and the build that they are compared with."""
    bases = bases or Bases(workspace)
    commit = _merge_base(workspace, build, bases.target(build)) if trigger_of_key(build.revision) == "pr" else None
    base = bases.choose(account, commit)
    verdicts = _verdicts(workspace, base.build) if base.build is not None else None
    causes = read_causes(workspace, build)
    blames, bad = causes.blames if causes is not None else (), bad_tests(workspace.results, build, list(account.suites))
    if base.target is not None:  # who broke a test was judged by the builds of the configured branch
        blames = tuple(blame for blame in blames if blame.cause in ("infra", "flaky"))
    failures = sort_failures(account, bad, blames, verdicts)
    return replace(tested, failures=failures, base=base)


def _deviceless(workspace: Workspace, build: Build) -> Ledger | None:
    """Return the account of the deviceless suites of a build that has no ledger, if they have ended."""
    results = workspace.manifests.find(DEVICELESS_RESULTS, build, DeviceTestResults)
    revision = workspace.manifests.revision(build.revision)
    if results is None or not results.suites or revision is None:
        return None
    day = revision.created_at.date()
    account = account_of_stage(build, results, workspace.artifacts, workspace.results.around(day))
    muted = muted_failures(workspace.results, account, quarantined(workspace, build.variant, day))
    return replace(account, muted=muted)


def _verdicts(workspace: Workspace, build: Build) -> dict[Identity, Verdict]:
    """The verdicts of the tests of a build that did not simply pass."""
    ledger = workspace.manifests.find(LEDGER, build, Ledger)
    suites = list(ledger.suites) if ledger is not None else []
    return {one.identity: one.verdict for one in bad_tests_in_brief(workspace.results, build, suites)}


def _merge_base(workspace: Workspace, build: Build, target: str | None) -> str | None:
    """Return the merge base of a pull request with its `target`, or the configured one; None where it cannot be told."""
    selection = workspace.manifests.find(TEST_SELECTION, build, TestSelection)
    revision = workspace.manifests.revision(build.revision)
    is_as_chosen = revision is None or revision.target == target
    if is_as_chosen and selection is not None and selection.subset is not None and selection.subset.base is not None:
        return selection.subset.base
    try:
        target = target or workspace.project.settings.jobs.pr.target
        return changes_of(workspace.project, revision.backend, target).base if revision is not None else None
    except AccelCiError:
        return None
