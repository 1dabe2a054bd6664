"""The selection of a pull request, from a repository, a nightly's results and the collected tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pyarrow.parquet as pq

from accel_ci.config.settings import Budgets, Project
from accel_ci.ledger.completeness import of_subset, too_little
from accel_ci.model import VERDICTS, Artifact, Revision, SelectedTest, Source, SuiteSelection, TestSelection
from accel_ci.ramp.pull_request import changed_selection, first_tests
from accel_ci.scope.selection import read_selection, write_selection
from accel_ci.scope.table import write_scope
from accel_ci.steps.device_tests import plan_device_tests, read_plan
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.project import minimal_config
from accel_ci_tests.fixtures.scoped_builds import Row, op_rows, ramp_sections, scope_row, scope_table, write_build

NIGHT = [*op_rows(["add", "mul", "exp"], ["float32", "int64"], "enabled"), scope_row("test/test_own.py::test_a")]
BROKEN = "test/test_broken.py"


def workspace_of(make_project: Callable[..., Project], tests: str = "changed") -> Workspace:
    sections = ramp_sections()
    jobs = {**sections["jobs"], "pr": {"suites": ["smoke", "upstream"], "tests": tests}}  # type: ignore[dict-item]
    backend = {**minimal_config()["backend"], "ref": "refs/heads/main"}  # type: ignore[dict-item]
    return Workspace(make_project(**{**sections, "jobs": jobs, "backend": backend}))


def propose(repository: Path, files: dict[str, str], beside: str = "main") -> Revision:
    """Return the revision of a pull request with a commit beside a branch, which is checked out."""
    git(repository, "checkout", "--quiet", "--detach")
    source = Source("repository", "refs/pull/7/head", commit(repository, files), "backend")
    git(repository, "checkout", "--quiet", beside)
    return Revision("pr-7", "pr", datetime(2026, 11, 20, 13, tzinfo=timezone.utc), source, source)


def collected(workspace: Workspace, rows: Sequence[Row]) -> TestSelection:
    """Return the selection of all enabled tests of the rows, and of a file that cannot be collected."""
    enabled = [row["test"] for row in rows if row["status"] == "enabled"]
    tests = write_selection([SelectedTest("upstream", test) for test in [*enabled, BROKEN]], workspace.artifacts)
    suite = SuiteSelection("upstream", len(rows), len(enabled), {}, (f"{BROKEN}: it is broken",))
    return TestSelection(tests, (suite,), 1.0, write_scope(scope_table(rows), workspace.artifacts))


def chosen(workspace: Workspace, selection: TestSelection) -> list[str]:
    return [test.test for test in read_selection(selection.tests, workspace.artifacts)]


def test_the_subset_has_what_changed_what_failed_and_a_sample(
    repository: Path, make_project: Callable[..., Project]
) -> None:
    workspace = workspace_of(make_project)
    add, exp = [row["test"] for row in NIGHT[:2]], [row["test"] for row in NIGHT[4:6]]
    fails = NIGHT[3]["test"]
    write_build(workspace, 19, NIGHT, {**dict.fromkeys([row["test"] for row in NIGHT], "passed"), fails: "failed"})
    selection = collected(workspace, NIGHT)
    revision = propose(repository, {"backend/csrc/add.cpp": 'm.impl("add_.Tensor", add);\n'})
    found = changed_selection(workspace, selection, revision, "py3")
    assert chosen(workspace, found) == [*add, fails, exp[0], "test/test_own.py::test_a", BROKEN]
    assert found.subset is not None
    assert found.subset.words == "5 of 7 tests: 2 of changed ops, 1 that failed lately, 2 as a sample"
    assert found.subset.base == git(repository, "rev-parse", "main")
    assert found.subset.reasons == {
        "op add is named in csrc/add.cpp": 2,
        "failed in nightly-20261119": 1,
        "sample of op exp": 1,
        "sample of test/test_own.py": 1,
    }
    [suite] = found.suites
    assert (suite.selected, suite.not_chosen, suite.expected) == (5, 2, 6)
    assert (found.enabled, found.in_scope, found.collected) == (selection.enabled, selection.in_scope, selection.collected)
    assert isinstance(found.subset.tests, Artifact)
    table = pq.read_table(workspace.artifacts.path(found.subset.tests))
    reasons = dict(zip(table["test"].to_pylist(), table["reason"].to_pylist(), strict=True))
    assert reasons[fails] == "failed in nightly-20261119"


def test_the_change_is_the_difference_to_the_branch_that_the_pull_request_is_for(
    repository: Path, make_project: Callable[..., Project]
) -> None:
    workspace = workspace_of(make_project)
    git(repository, "checkout", "--quiet", "-b", "release-1")
    released = commit(repository, {"backend/setup.py": "1\n"})
    revision = propose(repository, {"backend/csrc/add.cpp": "1\n"}, beside="release-1")
    git(repository, "checkout", "--quiet", "main")
    bases = {}
    for target in (None, "refs/heads/release-1"):
        found = changed_selection(workspace, collected(workspace, NIGHT), replace(revision, target=target), "py3")
        assert found.subset is not None
        bases[target] = found.subset.base
    assert bases == {None: git(repository, "rev-parse", "main"), "refs/heads/release-1": released}


def test_all_tests_stay_where_the_effect_of_the_change_is_not_known(
    repository: Path, make_project: Callable[..., Project]
) -> None:
    workspace = workspace_of(make_project)
    selection = collected(workspace, NIGHT)
    source = propose(repository, {"backend/a.py": "1\n"})
    build = propose(repository, {"backend/setup.py": "1\n"})
    for revision, words in (
        (build, "all 7 tests: setup.py changes, which may concern all tests"),
        (replace(source, backend=replace(source.backend, sha="1" * 40)), "all 7 tests: git merge-base failed"),
        (replace(source, backend=replace(source.backend, dirty=True)), "all 7 tests: the sources have uncommitted changes"),
    ):
        found = changed_selection(workspace, selection, revision, "py3")
        assert found.subset is not None
        assert found.subset.words.startswith(words)
        assert replace(found, subset=None) == selection
    first = changed_selection(workspace, selection, source, "py3")
    assert first.subset is not None
    assert first.subset.words.startswith("7 of 7 tests: 7 of suites that no nightly and no build of main has run")
    assert chosen(workspace, first) == chosen(workspace, selection)
    assert [suite.not_chosen for suite in first.suites] == [0]


def test_all_tests_run_and_those_that_the_change_concerns_come_first(
    repository: Path, make_project: Callable[..., Project]
) -> None:
    workspace = workspace_of(make_project, "changed_first")
    names = [row["test"] for row in NIGHT]
    write_build(workspace, 19, NIGHT, {**dict.fromkeys(names, "passed"), names[3]: "failed"})
    selection = collected(workspace, NIGHT)
    revision = propose(repository, {"backend/csrc/add.cpp": 'm.impl("add_.Tensor", add);\n'})
    found = changed_selection(workspace, selection, revision, "py3")
    assert replace(found, subset=None) == selection, "all of them run"
    assert found.subset is not None
    assert found.subset.words == "3 of 7 tests first: 2 of changed ops, 1 that failed lately"
    first = first_tests(found, workspace.artifacts)
    assert first == {("upstream", names[0]), ("upstream", names[1]), ("upstream", names[3])}, "no sample"
    plan = plan_device_tests(workspace.project.settings, found, {}, workspace.artifacts, first=first)
    batches = read_plan(plan.batches, workspace.artifacts).batches
    assert plan.tests == 8
    assert first <= {("upstream", test) for test in batches[0].tests}
    none = propose(repository, {"backend/a.py": "1\n"})
    write_build(workspace, 20, NIGHT, dict.fromkeys(names, "passed"))
    found = changed_selection(workspace, selection, replace(none, key="pr-8"), "py3")
    assert found.subset is not None
    assert found.subset.words == "all 7 tests: none is known to be concerned; no op is named in a.py"
    assert first_tests(found, workspace.artifacts) == frozenset()
    assert first_tests(selection, workspace.artifacts) == frozenset()


def test_shares_of_a_subset_say_nothing_but_something_must_pass() -> None:
    budgets = Budgets(passed=500, skipped=0.1, xfailed=0.1, left_out=3)
    some = {**dict.fromkeys(VERDICTS, 0), "passed": 1, "skipped": 8, "xfailed": 8}
    assert len(too_little("s", some, None, {}, budgets)) == 3
    assert too_little("s", some, None, {}, of_subset(budgets)) == []
    assert len(too_little("s", {**some, "passed": 0}, None, {"conftest.py": 4}, of_subset(budgets))) == 2
