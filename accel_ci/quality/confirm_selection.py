"""The manifests of a build that runs failures again: it has the image and the tests of the build that it confirms."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from accel_ci.errors import AccelCiError, SelectionError
from accel_ci.model import Build, Revision, SelectedTest, Subset, SuiteSelection, TestSelection
from accel_ci.pipelines import TEST_SELECTION
from accel_ci.quality.causes import Identity
from accel_ci.quality.confirm import Rerun
from accel_ci.quality.current_confirm import attempts_that_failed, nothing_to_confirm, plan_reruns
from accel_ci.results.columns import pairs, schema_of
from accel_ci.scope.selection import read_selection, write_selection
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.workspace import Workspace

_RERUNS = schema_of(
    suite=pa.string(), test=pa.string(), reason=pa.string(), times=pa.int32(), failed_on=pa.list_(pa.string())
)

T = TypeVar("T")


@dataclass(frozen=True)
class Repetition:
    """Of each test of a build that confirms failures, the number of its runs, and the cards on which it has failed."""

    times: Mapping[Identity, int]
    failed_on: Mapping[Identity, Sequence[str]]


def manifest_of_confirmed(workspace: Workspace, stage: str, revision: Revision, variant: str, value_type: type[T]) -> T:
    """Return a stage's manifest of the build whose failures run again. Raises `AccelCiError`."""
    build = confirmed_build(revision, variant)
    found = workspace.manifests.find(stage, build, value_type)
    if found is None:
        raise AccelCiError(f"there is no {stage} of {build.name}, whose failures are to run again: was it pruned?")
    return found


def confirmed_build(revision: Revision, variant: str) -> Build:
    """Return the build whose failures run again. Raises `AccelCiError` for another revision."""
    if revision.confirms is None:
        raise AccelCiError(f"the revision {revision.key!r} does not say which one it confirms; use `accel-ci run confirm`")
    return Build(revision.confirms, variant)


def confirm_selection(workspace: Workspace, revision: Revision, variant: str) -> TestSelection:
    """Return the selection of a build that runs failures again. A choice that was made once stays.

    Raises `SelectionError` where there is none to run, `AccelCiError`.
    """
    own, build = Build(revision.key, variant), confirmed_build(revision, variant)
    before = workspace.manifests.find(TEST_SELECTION, own, TestSelection)
    if before is not None and before.subset is not None and before.subset.tests is not None:
        return before
    selection = manifest_of_confirmed(workspace, TEST_SELECTION, revision, variant, TestSelection)
    plan = plan_reruns(workspace, build)
    if not plan.reruns:
        raise SelectionError(str(nothing_to_confirm(build, plan)))
    tests = read_selection(selection.tests, workspace.artifacts)
    chosen = with_their_groups(plan.reruns, tests)
    subset = Subset(
        f"{plan.in_words()}, of {build.name}",
        dict(Counter(rerun.reason for rerun in chosen.values()).most_common()),
        workspace.artifacts.put_bytes(_as_parquet(workspace, build, chosen.values()), "reruns.parquet"),
    )
    kept = [test for test in tests if (test.suite, test.test) in chosen]
    suites = tuple(_part_of(each, chosen) for each in selection.suites if any(each.suite == suite for suite, _ in chosen))
    artifact = write_selection(kept, workspace.artifacts)
    return replace(selection, tests=artifact, suites=suites, work_s=0.0, subset=subset)


def with_their_groups(reruns: Iterable[Rerun], tests: Iterable[SelectedTest]) -> dict[Identity, Rerun]:
    """Return reruns by test, with those of the tests that must run together with them."""
    found = {rerun.identity: rerun for rerun in reruns}
    of_group: dict[tuple[str, str | None], SelectedTest] = {
        (test.suite, test.group): test for test in tests if test.group is not None and (test.suite, test.test) in found
    }
    for test in tests:
        if (test.suite, test.group) in of_group and (test.suite, test.test) not in found:
            first = of_group[test.suite, test.group]
            reason = f"runs together with {first.test}"
            found[test.suite, test.test] = replace(found[first.suite, first.test], test=test.test, reason=reason)
    return found


def read_repetition(selection: TestSelection, artifacts: ArtifactStore) -> Repetition:
    """Return how often the tests of such a selection run. Raises `AccelCiError`."""
    if selection.subset is None or selection.subset.tests is None:
        raise SelectionError("the selection has no failures to run again; use `accel-ci run confirm … --again`")
    table = pq.read_table(artifacts.checked_path(selection.subset.tests), schema=_RERUNS)
    rows = list(pairs(table, "suite", "test", "times", "failed_on"))
    times = {(str(suite), str(test)): int(number) for suite, test, number, _ in rows}
    return Repetition(times, {(str(suite), str(test)): cards for suite, test, _, cards in rows})


def _as_parquet(workspace: Workspace, build: Build, reruns: Collection[Rerun]) -> bytes:
    failed_on: defaultdict[Identity, set[str]] = defaultdict(set)
    for attempt in attempts_that_failed(workspace, build, {rerun.suite for rerun in reruns}):
        if attempt.card is not None:
            failed_on[attempt.suite, attempt.test].add(attempt.card)
    rows = [
        {
            "suite": rerun.suite, "test": rerun.test, "reason": rerun.reason, "times": rerun.times,
            "failed_on": sorted(failed_on[rerun.identity]),
        }
        for rerun in reruns
    ]  # fmt: skip
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=_RERUNS), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def _part_of(suite: SuiteSelection, chosen: Mapping[Identity, Any]) -> SuiteSelection:
    """The numbers of a suite of which only the chosen tests run, among them files that cannot be collected."""
    broken = tuple(each for each in suite.collection_errors if (suite.suite, each.partition(": ")[0]) in chosen)
    selected = sum(of == suite.suite for of, _ in chosen) - len(broken)
    not_chosen = suite.enabled - selected
    return replace(suite, selected=selected, not_chosen=not_chosen, collection_errors=broken, skipped_files={})
