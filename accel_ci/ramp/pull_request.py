"""Read what the choice of a pull request's tests needs, and make its selection of them: the effects of `ramp.changed`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq

from accel_ci.config.settings import Settings
from accel_ci.errors import AccelCiError, SelectionError
from accel_ci.model import Artifact, Revision, SelectedTest, Subset, TestSelection, Trigger
from accel_ci.ramp.chances import RampTest
from accel_ci.ramp.changed import Choice, FileRules, Reason, SuiteBefore, choose_tests, with_groups
from accel_ci.ramp.current import known_tests, scoped_builds, verdicts_of_build
from accel_ci.results.columns import counts_of, pairs
from accel_ci.scope.selection import read_selection, write_selection
from accel_ci.scope.table import read_scope
from accel_ci.source.changes import ChangedFile, changes_of
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.workspace import Workspace

BEFORE: tuple[Trigger, ...] = ("nightly", "main")
"""The triggers whose builds show what fails without the pull request."""

_FAILED = ("failed", "flaky")
_LOOKED_AT = 10  # builds, for the last one with each suite


def changed_selection(workspace: Workspace, selection: TestSelection, revision: Revision, variant: str) -> TestSelection:
    """Return the selection of a pull request: of the enabled tests, those that its change may concern.

    Where that is not known, all of them stay, and the subset has the reason. With `jobs.pr.tests: changed_first` they all
    stay, too, and the subset has those to run first.
    """
    if selection.scope is None:
        raise SelectionError("the selection has no table of scope, so no test can be chosen by its file and op")
    settings, artifacts = workspace.project.settings, workspace.artifacts
    tests, scope = read_selection(selection.tests, artifacts), read_scope(selection.scope, artifacts)
    base = change = None
    try:
        changes = changes_of(workspace.project, revision.backend, revision.target or settings.jobs.pr.target)
        base, change = changes.base, changes.digest
        choice, _ = choose_by_change(workspace, variant, tests, scope, changes.files, revision.created_at)
    except AccelCiError as error:
        choice = Choice(whole=str(error))
    are_first = settings.jobs.pr.tests == "changed_first"
    choice = choice.without_sample() if are_first else choice
    words = choice.in_words(selection.enabled, are_first=are_first)
    if choice.whole is not None or (are_first and not choice.tests):
        return replace(selection, subset=Subset(words, base=base, are_first=are_first, change=change))
    reasons = dict(Counter(reason.words for reason in choice.tests.values()).most_common())
    subset = Subset(words, reasons, _write_reasons(choice.tests, artifacts), base, are_first, change)
    if are_first:
        return replace(selection, subset=subset)
    counts = Counter(suite for suite, _ in choice.tests)
    suites = tuple(
        replace(each, selected=counts[each.suite], not_chosen=each.selected - counts[each.suite])
        for each in selection.suites
    )
    enabled = {(suite, test) for suite, test, status in pairs(scope, "suite", "test", "status") if status == "enabled"}
    # Files that cannot be collected, or skip themselves, stay.
    kept = [test for test in tests if (key := (test.suite, test.test)) in choice.tests or key not in enabled]
    return replace(selection, tests=write_selection(kept, artifacts), suites=suites, subset=subset)


def choose_by_change(
    workspace: Workspace,
    variant: str,
    tests: Sequence[SelectedTest],
    scope: pa.Table,
    files: Sequence[ChangedFile],
    at: datetime,
    *,
    known_before: bool = False,
) -> tuple[Choice, list[RampTest]]:
    """Choose the tests that changed files may concern; return the tests in scope, too, with what is known of them.

    `tests` and `scope` are those of a build from the time `at`. With `known_before`, builds count only if they were there
    before that time, and their results. Raises `AccelCiError`.
    """
    settings, until = workspace.project.settings, at if known_before else None
    before = _before(workspace, variant, {str(suite) for suite in counts_of(scope["suite"])}, until)
    known = known_tests(workspace, variant, scope, at.date(), until)
    rules = file_rules(settings, {*(test.file for test in tests), *(str(file) for file in scope["file"].to_pylist())})
    choice = choose_tests(known, files, before, rules, settings.jobs.pr.sample_card_seconds)
    return with_groups(choice, tests), known


def file_rules(settings: Settings, tests: Collection[str]) -> FileRules:
    """Return what the configuration says of files of the backend; `tests` are the files of the collected tests."""
    paths = {path for suite in settings.suites.values() if suite.source == "backend" for path in suite.paths}
    device = settings.device
    keys = ("test_base", "disabled_tests", "slow_tests") if device is not None else ()
    named = {path: f"device.{key}" for key in keys if (path := getattr(device, key)) is not None}
    return FileRules(frozenset(tests), tuple(sorted(paths)), named)


def _before(
    workspace: Workspace, variant: str, suites: Collection[str], until: datetime | None = None
) -> dict[str, SuiteBefore]:
    """Return each suite in the last finished build of main or nightly that has it."""
    found: dict[str, SuiteBefore] = {}
    for build in islice(scoped_builds(workspace, variant, BEFORE, until=until), _LOOKED_AT):
        scope = list(pairs(build.scope, "suite", "test", "status"))
        failed = [
            (suite, test)
            for suite, test, verdict in pairs(verdicts_of_build(workspace, build), "suite", "test", "verdict")
            if verdict in _FAILED
        ]
        for suite in {str(suite) for suite, _, _ in scope} & set(suites) - set(found):
            enabled = (str(test) for of, test, status in scope if of == suite and status == "enabled")
            bad = (str(test) for of, test in failed if of == suite)
            found[suite] = SuiteBefore(build.revision.key, frozenset(enabled), frozenset(bad))
        if set(suites) <= set(found):
            break
    return found


def tests_of_subset(selection: TestSelection, artifacts: ArtifactStore) -> frozenset[tuple[str, str]] | None:
    """Return the suite and id of the tests of a build's subset; None where it has none. Raises `AccelCiError`."""
    if selection.subset is None or selection.subset.tests is None:
        return None
    table = pq.read_table(artifacts.checked_path(selection.subset.tests), columns=["suite", "test"])
    return frozenset(pairs(table, "suite", "test"))


def first_tests(selection: TestSelection, artifacts: ArtifactStore) -> frozenset[tuple[str, str]]:
    """Return the tests that run before all others; none where the selection does not ask for that."""
    if selection.subset is None or not selection.subset.are_first:
        return frozenset()
    return tests_of_subset(selection, artifacts) or frozenset()


def _write_reasons(reasons: Mapping[tuple[str, str], Reason], artifacts: ArtifactStore) -> Artifact:
    """Keep why each test was chosen, in the columns `suite`, `test` and `reason`."""
    columns = {
        "suite": [suite for suite, _ in reasons],
        "test": [test for _, test in reasons],
        "reason": [reason.words for reason in reasons.values()],
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    return artifacts.put_bytes(sink.getvalue().to_pybytes(), "subset.parquet")
