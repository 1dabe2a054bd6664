"""Judge whether enough was tested: passes, skips and xfails within a suite's budgets, no test gone without a reason.

A test that was expected before and is gone needs a reason: a rule of the scope, or a file that the sources do not have any
more. Without one it stays among the expected tests of later builds, until somebody accepts that it is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from accel_ci.config.scope_settings import Scope
from accel_ci.config.settings import Budgets
from accel_ci.errors import AccelCiError
from accel_ci.ledger.account import expected_tests
from accel_ci.model import (
    Acceptance,
    Artifact,
    Build,
    DeviceTestResults,
    Ledger,
    Revision,
    SelectedTest,
    SuiteSelection,
    TestSelection,
    Verdict,
)
from accel_ci.pipelines import (
    DEVICE_TEST_RESULTS,
    DEVICELESS_RESULTS,
    LEDGER,
    SMOKE_RESULTS,
    STACK_TEST_RESULTS,
    TEST_SELECTION,
)
from accel_ci.scope.apply import apply_scope
from accel_ci.scope.rule_files import whole_scope
from accel_ci.scope.selection import read_selection
from accel_ci.scope.table import FACTS, facts_table, read_scope
from accel_ci.source.revision import checkout_backend, removed_files
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace

_LOG = logging.getLogger(__name__)
_TESTS = TypeAdapter(list[SelectedTest])
_NAMED = 3
"""So many of the tests that are gone are named."""

COMPARED = ("nightly", "intraday", "main")
"""The triggers whose builds follow each other, so that one has the tests of the one before."""


def judge_completeness(workspace: Workspace, revision: Revision, account: Ledger) -> Ledger:
    """Return the account of a build with the reasons why too little was tested, and the tests that are gone."""
    manifests, artifacts, suites = workspace.manifests, workspace.artifacts, workspace.project.settings.suites
    selections = _selections(manifests, account.build)
    expected = _expected(manifests, artifacts, account.build)
    incomplete: list[str] = []
    gone: list[SelectedTest] = []
    reasons: list[str] = []
    previous = manifests.find(LEDGER, account.build, Ledger)
    accepted = previous.accepted if previous else None
    known = set(read_selection(accepted.tests, artifacts)) if accepted else set()
    for suite, counts in account.suites.items():
        budgets = suites[suite].budgets if suite in suites else Budgets()
        before = _before(manifests, revision, account.build, suite)
        selection = selections.get(suite)
        budgets = of_subset(budgets) if selection and selection.not_chosen else budgets
        incomplete += too_little(suite, counts, before, selection.left_out if selection else {}, budgets)
        if before is None or suite not in expected:
            continue
        baseline = _baseline(manifests, artifacts, before, suite)
        missing = [test for test in baseline - expected[suite] if SelectedTest(suite, test) not in known]
        scope = suites[suite].scope if suite in suites else Scope()
        facts = _facts(manifests, artifacts, (account.build, before.build), suite, missing)
        unexplained = _unexplained(workspace, revision, before.build, facts, scope)
        gone += [SelectedTest(suite, test) for test in unexplained]
        broken = _broken_files(selection)
        counted = [test for test in unexplained if SelectedTest(suite, test).file not in broken]
        reasons += too_many_gone(suite, counted, len(baseline), budgets, account.build)
    vanished = _stored(gone, artifacts) if gone else None
    return replace(
        account, incomplete=tuple(incomplete), vanished=vanished, vanished_reasons=tuple(reasons), accepted=accepted
    )


def too_little(
    suite: str, counts: Mapping[Verdict, int], before: Ledger | None, left_out: Mapping[str, int], budgets: Budgets
) -> list[str]:
    """Say which budgets of a suite its verdicts, and what pytest left out, exceed. `before` is the ledger before."""
    expected, where = sum(counts.values()), f"suites.{suite}.budgets"
    found = []
    passed = sum(counts[verdict] for verdict in ("passed", "xpassed", "flaky"))
    if passed < budgets.passed and not any(counts[verdict] for verdict in ("failed", "infra", "not_run")):
        found.append(f"{suite}: {passed:,} of {expected:,} tests passed, at least {budgets.passed:,} must ({where}.passed)")
    for verdict, what, limit in (
        ("skipped", "were skipped", budgets.skipped),
        ("xfailed", "failed as expected", budgets.xfailed),
    ):
        count = counts[verdict]  # type: ignore[index]
        if count > limit * expected:
            share = count / expected
            found.append(
                f"{suite}: {count:,} of {expected:,} tests {what} ({share:.0%}), {limit:.0%} may ({where}.{verdict})"
            )
    if before is not None:
        earlier = before.suites[suite]
        rise = counts["skipped"] / max(1, expected) - earlier["skipped"] / max(1, sum(earlier.values()))
        if rise > budgets.more_skipped:
            found.append(
                f"{suite}: {counts['skipped']:,} of {expected:,} tests were skipped, {earlier['skipped']:,} of "
                f"{sum(earlier.values()):,} in {before.build.revision}; a rise of {budgets.more_skipped:.0%} is allowed "
                f"({where}.more_skipped)"
            )
    if (total := sum(left_out.values())) > budgets.left_out:
        who = ", ".join(f"{count:,} {by}" for by, count in left_out.items())
        found.append(
            f"{suite}: pytest left out {total:,}, {budgets.left_out:,} may be: {who}; write scope rules with reasons, "
            f"or raise {where}.left_out"
        )
    return found


def of_subset(budgets: Budgets) -> Budgets:
    """Return the budgets for a part of a suite, whose shares say nothing of the suite: something must pass."""
    return budgets.model_copy(update={"passed": min(budgets.passed, 1), "skipped": 1.0, "xfailed": 1.0})


def too_many_gone(suite: str, gone: Sequence[str], baseline: int, budgets: Budgets, build: Build) -> list[str]:
    """Say in words that too many of a suite's earlier tests are gone without a reason; nothing where it is few enough."""
    if len(gone) <= budgets.vanished * baseline:
        return []
    names = sorted(gone)
    some = ", ".join([*names[:_NAMED], *([f"and {len(names) - _NAMED:,} more"] if len(names) > _NAMED else [])])
    return [
        f"{suite}: {len(gone):,} of the {baseline:,} tests that were expected before vanished without a reason "
        f"({len(gone) / baseline:.0%}, {budgets.vanished:.0%} may), such as {some}; bring them back, exclude them by a "
        f"scope rule, or run `accel-ci accept {build.name} --reason …`"
    ]


def accept_vanished(workspace: Workspace, build: Build, reason: str) -> int:
    """Take it that the tests that vanished from a build are gone; return their number. Raises `AccelCiError` for none."""
    manifests, artifacts = workspace.manifests, workspace.artifacts
    accepted: list[SelectedTest] = []

    def accept() -> Ledger:
        ledger = manifests.read(manifests.path(LEDGER, build.revision, build.variant), Ledger)
        if ledger.vanished is None:
            raise AccelCiError(f"no test vanished from {build.name} without a reason, so there is nothing to accept")
        accepted[:] = read_selection(ledger.vanished, artifacts)
        earlier = read_selection(ledger.accepted.tests, artifacts) if ledger.accepted else []
        kept = Acceptance(_stored([*earlier, *accepted], artifacts), reason, datetime.now(timezone.utc))
        return replace(ledger, vanished=None, vanished_reasons=(), accepted=kept)

    manifests.write_ledger(build, accept)
    return len(accepted)


def _stored(tests: Iterable[SelectedTest], artifacts: ArtifactStore) -> Artifact:
    ordered = sorted(tests, key=lambda test: (test.suite, test.test))
    return artifacts.put_bytes(_TESTS.dump_json(ordered, exclude_defaults=True), "vanished.json")


def _selections(manifests: ManifestStore, build: Build) -> dict[str, SuiteSelection]:
    """Return what was selected of each suite of a build."""
    own = (manifests.find(stage, build, DeviceTestResults) for stage in (DEVICELESS_RESULTS, SMOKE_RESULTS))
    selected = [each for results in own if results is not None for each in results.selections]
    device = manifests.find(TEST_SELECTION, build, TestSelection)
    return {each.suite: each for each in (*selected, *(device.suites if device else ()))}


def _expected(manifests: ManifestStore, artifacts: ArtifactStore, build: Build) -> dict[str, set[str]]:
    """Return the ids of the tests that were expected of a build, by suite."""
    found: dict[str, set[str]] = {}
    for stage in (STACK_TEST_RESULTS, DEVICELESS_RESULTS, SMOKE_RESULTS, DEVICE_TEST_RESULTS):
        results = manifests.find(stage, build, DeviceTestResults)
        if results is not None:
            for suite, tests in expected_tests(results.expected, artifacts).items():
                found[suite] = {str(test) for test in tests.to_pylist()}
    return found


def _before(manifests: ManifestStore, revision: Revision, build: Build, suite: str) -> Ledger | None:
    """Return the ledger of the last finished build with the suite; None where no build follows another."""
    if revision.trigger not in COMPARED:
        return None
    return manifests.previous(LEDGER, build, Ledger, lambda ledger: suite in ledger.suites)


def _baseline(manifests: ManifestStore, artifacts: ArtifactStore, before: Ledger, suite: str) -> set[str]:
    """Return the tests that a build must have: those of the one before, and those that had vanished from it."""
    try:
        carried = read_selection(before.vanished, artifacts) if before.vanished else []
        expected = _expected(manifests, artifacts, before.build).get(suite, set())
    except AccelCiError as error:
        _LOG.warning("the tests expected of %s are not known any more: %s", before.build.name, error)
        return set()
    return expected | {test.test for test in carried if test.suite == suite}


def _facts(
    manifests: ManifestStore, artifacts: ArtifactStore, builds: Iterable[Build], suite: str, tests: Iterable[str]
) -> pa.Table:
    """Return the facts of tests, as the first of the builds with the test has them; of others, no more than their ids."""
    unknown, found = set(tests), [FACTS.empty_table()]
    for build in builds:
        selection = manifests.find(TEST_SELECTION, build, TestSelection)
        if not unknown or selection is None or selection.scope is None:
            continue
        try:
            table = read_scope(selection.scope, artifacts)
        except AccelCiError as error:
            _LOG.warning("the scope of %s is not known any more: %s", build.name, error)
            continue
        wanted = [test in unknown and of == suite for test, of in zip(*map(_texts(table), ("test", "suite")), strict=True)]
        found.append(table.filter(pa.array(wanted, pa.bool_())).select(FACTS.names))
        unknown -= {str(test) for test in found[-1]["test"].to_pylist()}
    return pa.concat_tables([*found, facts_table(sorted(unknown), {})])


def _unexplained(workspace: Workspace, revision: Revision, before: Build, facts: pa.Table, scope: Scope) -> Collection[str]:
    """Return the tests that neither the scope, nor a file that was removed, nor a person's word in the settings explains."""
    if not len(facts) or workspace.project.settings.quality.fewer_tests_reason:
        return ()
    judged = apply_scope("", whole_scope(scope, workspace.project.root), facts).table
    in_question = [
        str(test) for test, status in zip(*map(_texts(judged), ("test", "status")), strict=True) if status == "enabled"
    ]
    earlier = workspace.manifests.revision(before.revision)
    if not in_question or earlier is None:
        return in_question
    try:
        folder = checkout_backend(workspace.project, revision.backend)
        removed = removed_files(workspace.project, earlier.backend, folder)
    except AccelCiError as error:
        _LOG.warning("the files of %s are not known, so that none counts as removed: %s", earlier.backend.label, error)
        return in_question
    return [test for test in in_question if SelectedTest("", test).file not in removed]


def _texts(table: pa.Table) -> Callable[[str], list[Any]]:
    return lambda column: table[column].to_pylist()


def _broken_files(selection: SuiteSelection | None) -> set[str]:
    """Return the files that cannot be collected: each fails under its own name until it is mended."""
    return {error.partition(": ")[0] for error in selection.collection_errors} if selection else set()
