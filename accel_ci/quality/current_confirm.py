"""Choose the failures of a build to run again as of now, and find the builds that have some.

What decides is in `confirm.py`; here its data are read. What the build that runs them takes is in `confirm_selection.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import date, datetime, timezone

from accel_ci.config.settings import Settings
from accel_ci.errors import AccelCiError
from accel_ci.model import CONFIRM, Attempt, Build, DeviceTestResults, Ledger, SelectedTest, TestSelection
from accel_ci.pipelines import DEVICE_TEST_RESULTS, LEDGER, TEST_SELECTION
from accel_ci.quality.causes import Blame, Identity
from accel_ci.quality.confirm import RerunPlan, choose_reruns
from accel_ci.quality.grid import LINE
from accel_ci.quality.judgement import read_causes
from accel_ci.results.history import known_durations
from accel_ci.results.questions import bad_tests, failed_attempts
from accel_ci.scope.selection import read_selection
from accel_ci.source.revision import confirm_key
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace

MOST_BY_ITSELF = 2
"""The sensor has a build confirmed so often at most: failures that are in doubt after the first time run the second time."""

_UNKNOWN_S, _LEAST_S = 1.0, 0.001


class NothingToConfirmError(AccelCiError):
    """No failure of a build is to run again now; the message says why."""


def confirmations(manifests: ManifestStore, build: Build) -> list[Build]:
    """Return the builds that are to run failures of a build again, the first one first."""
    found: list[Build] = []
    while manifests.has_revision(key := confirm_key(build.revision, len(found) + 1)):
        found.append(Build(key, build.variant))
    return found


def next_confirmation(manifests: ManifestStore, build: Build) -> int:
    """Return the number of the build that is to run failures again: the first that has not finished."""
    finished = [_has_ledger(manifests, each) for each in confirmations(manifests, build)]
    return (finished.index(False) if False in finished else len(finished)) + 1


def plan_reruns(workspace: Workspace, build: Build, now: datetime | None = None) -> RerunPlan:
    """Choose the failures of a build to run again. Raises `AccelCiError` where nobody can know."""
    manifests, settings = workspace.manifests, workspace.project.settings
    revision = manifests.revision(build.revision)
    if revision is None:
        raise AccelCiError(f"there is no revision {build.revision!r}; `accel-ci status` names the newest build")
    if revision.trigger == CONFIRM:
        raise AccelCiError(f"{build.name} runs failures of {revision.confirms} again; name a build of that revision")
    causes, selection = read_causes(workspace, build), manifests.find(TEST_SELECTION, build, TestSelection)
    if causes is None:
        raise NothingToConfirmError(
            f"{build.name} has no ledger, or is older than quality.window_days: nobody has judged it"
        )
    if selection is None:
        raise NothingToConfirmError(f"{build.name} has no device tests, whose failures alone can run again")
    confirm = settings.quality.confirm
    tests = read_selection(selection.tests, workspace.artifacts)
    unfit = _unfit(workspace, build, causes.blames, tests)
    left_s = max(0.0, confirm.card_seconds - _spent_s(manifests, build))
    fit = [blame.identity for blame in causes.blames if blame.identity not in unfit]
    day = (now or datetime.now(timezone.utc)).date()
    costs = _card_s(workspace, build, tests, fit, day) if fit and left_s else dict.fromkeys(fit, _UNKNOWN_S)
    return choose_reruns(causes.blames, costs, left_s, confirm.reruns, unfit)


def newest_on_the_line(manifests: ManifestStore, variants: Collection[str]) -> Build:
    """Return the newest finished build of nightly, intraday or main in one of the variants. Raises `AccelCiError`."""
    line = (each.key for each in manifests.revisions() if each.trigger in LINE)
    builds = (Build(key, variant) for key in line for variant in variants)
    build = next((each for each in builds if _has_ledger(manifests, each)), None)
    if build is None:
        raise NothingToConfirmError("no build of nightly, intraday or main has finished yet")
    return build


def build_to_confirm(workspace: Workspace, variant: str, asked: str | None = None) -> Build:
    """Return the newest finished build of a variant's line whose failures may run again by themselves.

    `asked` is the name of the last build that was asked for. Raises `AccelCiError` with the reason why there is none.
    """
    manifests = workspace.manifests.at_one_moment()
    build = newest_on_the_line(manifests, [variant])
    number = next_confirmation(manifests, build)
    if number > MOST_BY_ITSELF:
        raise NothingToConfirmError(f"{build.name} was confirmed {MOST_BY_ITSELF} times")
    wanted = Build(confirm_key(build.revision, number), variant)
    if wanted.name == asked or manifests.folder(wanted).is_dir():
        raise NothingToConfirmError(f"{wanted.name} was asked for, and has not finished yet")
    return build


def nothing_to_confirm(build: Build, plan: RerunPlan) -> NothingToConfirmError:
    """Return the error that there is nothing to run again."""
    return NothingToConfirmError(f"nothing to confirm in {build.name}: {plan.left_out_in_words() or 'no failure'}")


def _unfit(
    workspace: Workspace, build: Build, blames: Sequence[Blame], tests: Iterable[SelectedTest]
) -> dict[Identity, str]:
    """The failures that cannot run again, with the reason."""
    settings = workspace.project.settings
    selected = {(test.suite, test.test) for test in tests if _is_there(settings, test.suite, build.variant)}
    suites = {blame.suite for blame in blames if blame.identity in selected}
    dependent = {
        (verdict.suite, verdict.test)
        for verdict in bad_tests(workspace.results, build, suites)
        if "skipped" in verdict.attempts
    }
    unfit = {blame.identity: "of no device suite" for blame in blames if blame.identity not in selected}
    return unfit | dict.fromkeys(dependent, "dependent on the tests before")


def _is_there(settings: Settings, suite: str, variant: str) -> bool:
    return suite in settings.confirmed_suites and settings.suites[suite].runs_in(variant)


def _card_s(
    workspace: Workspace, build: Build, tests: Sequence[SelectedTest], failures: Collection[Identity], day: date
) -> dict[Identity, float]:
    """The card-seconds of one run of each failure, with the tests of its group: the usual ones, or as long as it failed."""
    settings, is_trusted = workspace.project.settings, workspace.is_trusted_build
    seconds = known_durations(workspace.results, is_trusted, build, day, limit_s=settings.longest_test_s)
    for attempt in attempts_that_failed(workspace, build, {suite for suite, _ in failures}):
        key = attempt.suite, attempt.test
        if key in failures and attempt.duration_s is not None:
            seconds[key] = max(seconds.get(key, 0.0), attempt.duration_s)
    groups: defaultdict[Identity, float] = defaultdict(float)
    cost = {(test.suite, test.test): seconds.get((test.suite, test.test), _UNKNOWN_S) for test in tests}
    for test in tests:
        groups[test.suite, test.group or test.test] += cost[test.suite, test.test]
    group_of = {(test.suite, test.test): test.group or test.test for test in tests}
    return {
        (suite, test): max(_LEAST_S, groups[suite, group_of[suite, test]] * settings.suites[suite].cards)
        for suite, test in failures
    }


def attempts_that_failed(workspace: Workspace, build: Build, suites: Collection[str]) -> list[Attempt]:
    """Return the failed attempts of some suites of a build, and of its reruns."""
    builds = [build, *confirmations(workspace.manifests, build)]
    return [attempt for each in builds for attempt in failed_attempts(workspace.results, each, suites)]


def _spent_s(manifests: ManifestStore, build: Build) -> float:
    """The card-seconds of the reruns so far."""
    found = [manifests.find(DEVICE_TEST_RESULTS, each, DeviceTestResults) for each in confirmations(manifests, build)]
    return sum(card.busy_s for results in found if results is not None for card in results.cards)


def _has_ledger(manifests: ManifestStore, build: Build) -> bool:
    return manifests.read_history(manifests.path(LEDGER, build.revision, build.variant), Ledger) is not None
