"""Misses of the tests that changes choose: in the real history of a repository, one break is found and one is missed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner

from accel_ci.cli import main
from accel_ci.config.settings import Project
from accel_ci.hud.site import write_site
from accel_ci.model import VERDICTS, Build, Ledger, Outcome, Revision, Source, TestSelection
from accel_ci.pipelines import LEDGER, TEST_SELECTION
from accel_ci.quality.current_missed import MISSED, MissReport, read_missed, update_missed
from accel_ci.quality.flakiness import Flakiness, wilson_interval
from accel_ci.quality.judgement import judge_new_builds
from accel_ci.ramp.missed import JudgedBuild
from accel_ci.ramp.pull_request import changed_selection
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.project import minimal_config
from accel_ci_tests.fixtures.scoped_builds import NOON, op_rows, ramp_sections, scope_row, write_build

ROWS = [*op_rows(["add", "mul", "exp"], ["float32", "int64"], "enabled"), scope_row("test/test_own.py::test_a")]
ADD, MUL, EXP = ([row["test"] for row in ROWS if row["op"] == op] for op in ("add", "mul", "exp"))
OWN = "test/test_own.py::test_a"
FAILS: tuple[Outcome, ...] = ("failed", "failed", "failed")
FLAKES: tuple[Outcome, ...] = ("failed", "passed", "passed")
NOW = datetime(2026, 11, 30, tzinfo=timezone.utc)
ADD_CPP = 'm.impl("add.Tensor", add);\n'


class History:
    """A backend's repository, and a nightly for each of its days."""

    def __init__(self, workspace: Workspace, repository: Path) -> None:
        self.workspace, self.repository = workspace, repository
        self.upstream = 0
        for day in range(1, 11):
            self.night(day, {})

    def night(
        self, day: int, told: Mapping[str, Outcome | tuple[Outcome, ...]], files: Mapping[str, str] | None = None,
        muted: tuple[str, ...] = (),
    ) -> Build:  # fmt: skip
        """Commit files to main, and lay the day's nightly on disk, in which all tests pass that are not `told` of."""
        if files is not None:
            commit(self.repository, {f"backend/{name}": text for name, text in files.items()}, f"day {day}")
        outcomes: dict[str, Outcome | tuple[Outcome, ...]] = {row["test"]: "passed" for row in ROWS}
        sha, upstream = git(self.repository, "rev-parse", "main"), f"{self.upstream:040d}"
        return write_build(
            self.workspace, day, ROWS, {**outcomes, **told}, backend=sha, upstream=upstream,
            muted=[f"upstream: {test}" for test in muted],
        )  # fmt: skip

    def judged(self) -> dict[str, JudgedBuild]:
        """Judge all builds; return those that were held against their change, by day."""
        judge_new_builds(self.workspace, NOW)
        report = update_missed(self.workspace, NOW)
        assert report == read_missed(self.workspace)
        return {one.build.revision.removeprefix("nightly-202611"): one for one in report.builds}


@pytest.fixture
def history(repository: Path, make_project: Callable[..., Project]) -> History:
    """Ten nightlies of a state in which all tests pass."""
    sections = ramp_sections()
    jobs = {**sections["jobs"], "pr": {"suites": ["smoke", "upstream"], "tests": "changed"}}  # type: ignore[dict-item]
    backend = {**minimal_config()["backend"], "ref": "refs/heads/main"}  # type: ignore[dict-item]
    windows = {"ramp": {"window_days": 3650}, "quality": {"window_days": 3650}}
    project = make_project(**{**sections, "jobs": jobs, "backend": backend, **windows})
    return History(Workspace(project), repository)


def test_a_break_is_found_by_its_op_and_another_one_is_missed(history: History) -> None:
    history.night(11, dict.fromkeys(ADD, FAILS), {"csrc/add.cpp": ADD_CPP})
    history.night(12, {}, {"csrc/add.cpp": ADD_CPP * 2})
    history.night(13, {MUL[1]: FAILS}, {"csrc/helper.h": "int helper();\n"})
    found = history.judged()
    assert set(found) == {"11", "12", "13"}, "the others have no new commit"
    op, fixed, helper = found["11"], found["12"], found["13"]
    assert (op.found, op.missed, op.failures, op.count) == ({"op": 2}, (), 2, 1)
    assert op.words == "5 of 7 tests: 2 of changed ops, 3 as a sample"
    assert (op.tests, op.chosen, op.card_s, op.chosen_s) == (7, 5, 7.0, 5.0)
    assert (fixed.failures, fixed.words) == (0, "5 of 7 tests: 2 of changed ops, 3 as a sample")
    assert (helper.found, helper.failures, helper.chosen) == ({}, 1, 4)
    [missed] = helper.missed
    assert (missed.suite, missed.test, missed.file, missed.op) == ("upstream", MUL[1], "test/test_ops.py", "mul")
    assert missed.why == (
        "no changed source names the op mul (no op is named in csrc/helper.h); its file did not change, it passed before, "
        "and the sample does not have it"
    )
    report = read_missed(history.workspace)
    sums = report.sums
    assert (sums.builds, sums.failures, sums.missed, sums.chosen, sums.tests) == (3, 3, 1, 14, 21)
    low, high = wilson_interval(1, 3)
    assert report.words == (
        f"1 of 3 new failures (33.3%, 95 % interval {low:.1%} to {high:.1%}) missed, in 3 builds, for which 66.7% of the "
        "tests and 66.7% of the card-seconds would have run"
    )
    assert report.pull_words is None


def test_tests_that_failed_in_the_build_itself_are_not_known_by_then(history: History) -> None:
    history.night(11, {EXP[0]: FAILS}, {"csrc/helper.h": "int helper();\n"})
    [judged] = history.judged().values()
    assert judged.found == {"sample": 1}, "it is the sample of its op, since it passed before"
    assert "failed lately" not in judged.words


def test_only_new_failures_that_the_backend_has_caused_count(history: History) -> None:
    history.night(11, {OWN: FLAKES}, {"csrc/a.cpp": "1\n"})
    history.night(12, {MUL[1]: FAILS}, {"csrc/a.cpp": "2\n"}, muted=(MUL[1],))
    history.night(13, {}, {"csrc/a.cpp": "3\n"})
    history.upstream = 1
    history.night(14, {EXP[1]: FAILS})
    history.night(15, {EXP[1]: FAILS}, {"csrc/a.cpp": "4\n"})
    history.upstream = 2
    history.night(16, {MUL[1]: FAILS}, {"csrc/a.cpp": "5\n"})
    found = history.judged()
    assert {day: one.left_out for day, one in found.items()} == {
        "11": {"flaky": 1}, "12": {"in quarantine": 1}, "13": {}, "15": {}, "16": {"unknown": 1},
    }  # fmt: skip
    assert all(one.failures == 0 for one in found.values())
    report = read_missed(history.workspace)
    assert (report.sums.failures, report.sums.missed) == (0, 0)
    assert report.words.startswith("no data: the backend caused no new failure in 5 builds")


def test_a_change_that_runs_all_tests_misses_nothing_and_its_size_is_counted(history: History) -> None:
    history.night(11, {MUL[1]: FAILS}, {"setup.py": "1\n"})
    [judged] = history.judged().values()
    assert (judged.found, judged.missed, judged.chosen, judged.tests) == ({"whole": 1}, (), 7, 7)
    assert judged.words == "all 7 tests: setup.py changes, which may concern all tests"


def test_a_build_is_judged_once_until_its_failures_are_judged_anew(history: History) -> None:
    history.night(11, {MUL[1]: FAILS}, {"csrc/helper.h": "int helper();\n"})
    history.judged()
    kept = read_missed(history.workspace)
    (history.repository / ".git").rename(history.repository / "git")  # nothing is read from it any more
    assert update_missed(history.workspace, NOW) == kept
    assert update_missed(history.workspace, NOW + timedelta(days=3660)).builds == ()
    history.workspace.manifests.write(history.workspace.manifests.path(MISSED), MissReport())
    assert [one.problem for one in update_missed(history.workspace, NOW).builds] != [None], "it cannot be judged anew"
    (history.repository / "git").rename(history.repository / ".git")
    assert [one.problem for one in update_missed(history.workspace, NOW, most=None).builds] == [None]
    history.night(11, {}, None)
    assert [one.failures for one in history.judged().values()] == [0]


def proposed(history: History, number: int, files: Mapping[str, str], day: int) -> str:
    """Test a pull request with one commit beside main as it is: only the chosen tests run. Return its commit."""
    workspace, repository = history.workspace, history.repository
    base = git(repository, "rev-parse", "main")
    git(repository, "checkout", "--quiet", "--detach", base)
    sha = commit(repository, {f"backend/{name}": text for name, text in files.items()}, f"pull request {number}")
    git(repository, "checkout", "--quiet", "main")
    source = Source("repository", f"refs/pull/{number}/head", sha, "backend")
    at = NOON + timedelta(days=day - NOON.day, hours=-2)
    revision = Revision(f"pr-{number}-{sha[:12]}", "pr", at, source, Source("upstream", "HEAD", "0" * 40))
    workspace.manifests.add_revision(revision)
    nightly = workspace.manifests.path(TEST_SELECTION, f"nightly-202611{day - 1}", "py3")
    whole = workspace.manifests.read(nightly, TestSelection)
    selection = changed_selection(workspace, whole, revision, "py3")
    counts = dict.fromkeys(VERDICTS, 0) | {"passed": selection.selected}
    build = Build(revision.key, "py3")
    ledger = Ledger(build, selection.selected, counts, {"upstream": counts}, (), (), 0, 1.0, 1.0)
    for stage, manifest in ((TEST_SELECTION, selection), (LEDGER, ledger)):
        workspace.manifests.write(workspace.manifests.path(stage, revision.key, "py3"), manifest)
    return sha


@pytest.mark.parametrize("way", ["merge", "squash", "squash beside another commit"])
def test_what_merged_pull_requests_ran_is_held_against_the_next_nightly(history: History, way: str) -> None:
    add = proposed(history, 1, {"csrc/add.cpp": ADD_CPP}, 11)
    helper = proposed(history, 2, {"csrc/helper.h": "int helper();\n"}, 11)
    never = proposed(history, 3, {"csrc/exp.cpp": "exp\n"}, 11)
    for sha in (add, helper):
        if way == "merge":
            git(history.repository, "merge", "--quiet", "--no-ff", "-m", "merge", sha)
        else:
            git(history.repository, "cherry-pick", sha)
    beside = {"csrc/other.h": "1\n"} if way.endswith("commit") else None
    history.night(11, {ADD[1]: FAILS, MUL[1]: FAILS}, beside)
    [judged] = history.judged().values()
    assert judged.count == (3 if beside else 2)
    assert judged.pulls.pulls == tuple(sorted((f"pr-1-{add[:12]}", f"pr-2-{helper[:12]}"))), never
    assert (judged.found, [test.test for test in judged.missed]) == ({"op": 1}, [MUL[1]])
    report = read_missed(history.workspace)
    if beside is None:
        assert (judged.pulls.decided, judged.pulls.missed) == (2, (("upstream", MUL[1]),))
        assert (report.pull_words or "").startswith("1 of 2 new failures (50.0%, ")
    else:
        assert (judged.pulls.decided, judged.pulls.missed) == (1, ()), "the other one may be of the commit beside them"


def test_the_command_and_the_hud_show_the_rate_and_the_list(history: History, tmp_path: Path) -> None:
    workspace = history.workspace
    own = ["--config", str(workspace.project.config_path), "ramp", "missed"]
    page = write_site(workspace, Flakiness(30, 0, ()), tmp_path / "hud", now=NOW).with_name("pulls.html")
    assert "no data: no build with a change of the backend was judged" in page.read_text()
    history.night(11, dict.fromkeys(ADD, FAILS), {"csrc/add.cpp": ADD_CPP})
    history.night(12, {**dict.fromkeys(ADD, FAILS), MUL[1]: FAILS}, {"csrc/helper.h": "int helper();\n"})
    shown = CliRunner().invoke(main, own)
    assert shown.exit_code == 0, shown.output
    assert "1 of 3 new failures (33.3%" in shown.output
    assert f"upstream: {MUL[1]}" in shown.output
    data = json.loads(CliRunner().invoke(main, [*own, "--variant", "py3", "--json"]).stdout)
    assert (data["failures"], data["missed"], data["builds"][0]["build"]) == (3, 1, "nightly-20261112~py3")
    assert data["builds"][0]["before"] == "nightly-20261111~py3"
    assert data["rate"] == read_missed(workspace).words
    write_site(workspace, Flakiness(30, 0, ()), tmp_path / "hud", now=NOW)
    text = page.read_text()
    assert '<a href="#missed">1 of 3 new failures (33.3%' in text
    assert "no changed source names the op mul" in text
    assert json.loads(page.with_name("missed.json").read_text())["builds"][0]["missed"][0]["test"] == MUL[1]


def test_where_pull_requests_run_all_tests_nothing_is_shown(make_project: Callable[..., Project], tmp_path: Path) -> None:
    workspace = Workspace(make_project(**ramp_sections()))
    write_build(workspace, 20, ROWS, {row["test"]: "passed" for row in ROWS})
    page = write_site(workspace, Flakiness(30, 0, ()), tmp_path / "hud", now=NOW).with_name("pulls.html")
    assert "missed" not in page.read_text()
    assert not page.with_name("missed.json").exists()
    assert replace(read_missed(workspace), window_days=0) == MissReport()
