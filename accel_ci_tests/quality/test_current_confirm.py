"""The failures of builds in a real store that run again, and the selection of the build that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from accel_ci.config.settings import Project
from accel_ci.errors import AccelCiError
from accel_ci.model import Build, CardReport, DeviceTestResults, SelectedTest, SuiteSelection, TestSelection, Wheel
from accel_ci.pipelines import DEVICE_TEST_RESULTS, TEST_SELECTION, WHEEL
from accel_ci.quality.confirm_selection import confirm_selection, manifest_of_confirmed, read_repetition
from accel_ci.quality.current_confirm import build_to_confirm, next_confirmation, plan_reruns
from accel_ci.quality.judgement import judge_new_builds
from accel_ci.scope.selection import read_selection, write_selection
from accel_ci.source.revision import confirming_revision
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.finished_nights import (
    BROKEN,
    FAILS,
    PASSES,
    RACE,
    STEADY,
    TESTS,
    TODAY,
    fails,
    write_night,
    write_reruns,
)

NOW = datetime.now(timezone.utc)


def workspace_of(make_project: Callable[..., Project], **confirm: object) -> Workspace:
    return Workspace(make_project(quality={"confirm": confirm}))


def write_failing_night(workspace: Workspace) -> Build:
    """Lay three good nights on disk, then one in which a race and four tests of one op fail, with a new upstream, too."""
    for night in range(3):
        write_night(workspace, night, {}, backend=night)
    build = write_night(workspace, 3, {RACE: fails(), **dict.fromkeys(BROKEN, fails())}, backend=3, upstream=3)
    judge_new_builds(workspace, TODAY)
    return build


def select(workspace: Workspace, build: Build, tests: Sequence[SelectedTest]) -> None:
    """Write another selection of a build."""
    path = workspace.manifests.path(TEST_SELECTION, build.revision, build.variant)
    before = workspace.manifests.read(path, TestSelection)
    workspace.manifests.write(path, replace(before, tests=write_selection(tests, workspace.artifacts)))


def test_failures_of_one_event_have_two_runs_at_most_and_others_their_own(make_project: Callable[..., Project]) -> None:
    workspace = workspace_of(make_project)
    plan = plan_reruns(workspace, write_failing_night(workspace))
    assert [rerun.test for rerun in plan.reruns if rerun.test == RACE] == [RACE]
    assert 1 <= sum(rerun.test in BROKEN for rerun in plan.reruns) <= 2
    assert (plan.failures, plan.budget_s) == (5, 600)
    assert all(rerun.card_s == rerun.times for rerun in plan.reruns), "a second each"


def test_the_budget_is_for_all_reruns_of_a_build(make_project: Callable[..., Project]) -> None:
    workspace = workspace_of(make_project, card_seconds=5)
    build = write_failing_night(workspace)
    first = plan_reruns(workspace, build)
    assert 0 < first.card_s <= 5
    again = write_reruns(workspace, build, {RACE: PASSES})
    card = CardReport("0", True, None, 4, 4.5, 1.0)
    results = DeviceTestResults(write_selection([], workspace.artifacts), ("unit",), {}, (), (card,), 1.0, 1.0, 1.0)
    workspace.manifests.write(workspace.manifests.path(DEVICE_TEST_RESULTS, again.revision, again.variant), results)
    judge_new_builds(workspace, TODAY)
    second = plan_reruns(workspace, build)
    assert (second.budget_s, second.reruns) == (0.5, ())
    assert second.left_out["over the budget"] > 0


def test_a_test_costs_what_its_group_costs_and_what_it_took_to_fail(make_project: Callable[..., Project]) -> None:
    workspace = workspace_of(make_project)
    build = write_failing_night(workspace)
    alone = next(rerun for rerun in plan_reruns(workspace, build).reruns if rerun.test == RACE)
    grouped = [SelectedTest("unit", test, "ordered" if test in (RACE, *STEADY[:9]) else None) for test in TESTS]
    select(workspace, build, grouped)
    together = next(rerun for rerun in plan_reruns(workspace, build).reruns if rerun.test == RACE)
    assert together.card_s == 10 * alone.card_s
    confirmed = workspace.manifests.revision(build.revision)
    assert confirmed is not None
    revision = workspace.manifests.add_revision(confirming_revision(confirmed))
    selection = confirm_selection(workspace, revision, build.variant)
    assert {test.test for test in read_selection(selection.tests, workspace.artifacts)} >= {RACE, *STEADY[:9]}


def test_what_cannot_run_alone_or_is_not_there_any_more_does_not_run_again(make_project: Callable[..., Project]) -> None:
    workspace = workspace_of(make_project)
    for night in range(3):
        write_night(workspace, night, {}, backend=night)
    dependent = [("failed", "0", None), ("skipped", "1", None)]
    told = {RACE: dependent, BROKEN[0]: fails(), STEADY[0]: fails()}
    build = write_night(workspace, 3, told, backend=3)  # type: ignore[arg-type]
    select(workspace, build, [SelectedTest("unit", test) for test in (RACE, BROKEN[0])])
    judge_new_builds(workspace, TODAY)
    plan = plan_reruns(workspace, build)
    assert [rerun.test for rerun in plan.reruns] == [BROKEN[0]]
    assert plan.left_out == {"of no device suite": 1, "dependent on the tests before": 1}


def test_the_selection_has_the_chosen_failures_with_their_runs_and_cards_and_stays(
    make_project: Callable[..., Project],
) -> None:
    workspace = workspace_of(make_project, reruns=3)
    build = write_failing_night(workspace)
    confirmed = workspace.manifests.revision(build.revision)
    assert confirmed is not None
    revision = workspace.manifests.add_revision(confirming_revision(confirmed))
    selection = confirm_selection(workspace, revision, build.variant)
    tests = {test.test for test in read_selection(selection.tests, workspace.artifacts)}
    assert RACE in tests
    assert tests < {RACE, *BROKEN}
    assert selection.suites == (SuiteSelection("unit", len(TESTS), len(tests), {}, not_chosen=len(TESTS) - len(tests)),)
    assert selection.subset is not None
    assert selection.subset.words.endswith(f"of {build.name}")
    again = read_repetition(selection, workspace.artifacts)
    assert set(again.times.values()) <= {2, 3}
    assert again.failed_on["unit", RACE] == ["0", "1"]
    path = workspace.manifests.path(TEST_SELECTION, revision.key, build.variant)
    workspace.manifests.write(path, selection)
    write_reruns(workspace, build, dict.fromkeys(tests, FAILS))
    judge_new_builds(workspace, TODAY)
    assert confirm_selection(workspace, revision, build.variant) == selection, "the command runs the same tests again"


def test_a_build_that_nobody_can_confirm_is_refused_with_the_reason(make_project: Callable[..., Project]) -> None:
    workspace = workspace_of(make_project)
    with pytest.raises(AccelCiError, match="no build of nightly, intraday or main has finished yet"):
        build_to_confirm(workspace, "py3")
    with pytest.raises(AccelCiError, match="there is no revision 'nightly-1'"):
        plan_reruns(workspace, Build("nightly-1", "py3"))
    build = write_night(workspace, 3, {RACE: fails()}, backend=3)
    with pytest.raises(AccelCiError, match="nobody has judged it"):
        plan_reruns(workspace, build)
    judge_new_builds(workspace, TODAY)
    again = write_reruns(workspace, build, {RACE: PASSES})
    with pytest.raises(AccelCiError, match=f"{again.name} runs failures of {build.revision} again"):
        plan_reruns(workspace, again)
    workspace.manifests.path(TEST_SELECTION, build.revision, build.variant).unlink()
    with pytest.raises(AccelCiError, match="no device tests"):
        plan_reruns(workspace, build)
    revision = workspace.manifests.revision(again.revision)
    assert revision is not None
    with pytest.raises(AccelCiError, match=f"no wheel of {build.name}, .*: was it pruned"):
        manifest_of_confirmed(workspace, WHEEL, revision, build.variant, Wheel)


def test_a_build_confirms_itself_twice_at_most_and_one_after_the_other(make_project: Callable[..., Project]) -> None:
    workspace = workspace_of(make_project)
    build = write_failing_night(workspace)
    assert (build_to_confirm(workspace, "py3"), next_confirmation(workspace.manifests, build)) == (build, 1)
    with pytest.raises(AccelCiError, match=f"confirm-{build.name} was asked for, and has not finished yet"):
        build_to_confirm(workspace, "py3", f"confirm-{build.name}")
    first = write_reruns(workspace, build, {RACE: PASSES})
    assert (build_to_confirm(workspace, "py3", first.name), next_confirmation(workspace.manifests, build)) == (build, 2)
    write_reruns(workspace, build, {RACE: PASSES}, number=2)
    with pytest.raises(AccelCiError, match="was confirmed 2 times"):
        build_to_confirm(workspace, "py3")
    newer = write_night(workspace, 5, {}, backend=5)
    assert build_to_confirm(workspace, "py3") == newer
