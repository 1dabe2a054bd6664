"""Answers that are sent to a stand-in for GitHub: once, again when they change, and found again after a kill."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from filelock import FileLock

from accel_ci.config.settings import Project
from accel_ci.errors import AccelCiError
from accel_ci.github.client import TOKEN as VARIABLE
from accel_ci.model import Artifact, Build, Ledger, Revision, Source, SuiteSelection, TestSelection
from accel_ci.model import Subset as ChosenTests
from accel_ci.pipelines import INTEGRATION, LEDGER, TEST_SELECTION
from accel_ci.pull_requests.policy import PullRequest
from accel_ci.pull_requests.publish import publish_answers
from accel_ci.pull_requests.watched import Head, Watched, keep_watched, read_pull_request
from accel_ci.storage.manifests import PipelineRun
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.finished_nights import (
    BROKEN,
    FAILS,
    NIGHTS,
    TODAY,
    Told,
    attempts_of,
    sha,
    write_ledger,
    write_night,
)
from accel_ci_tests.fixtures.github_check_runs import Fault
from accel_ci_tests.fixtures.github_server import TOKEN, GitHubServer, github_server
from accel_ci_tests.fixtures.stored_attempts import write_attempts

NOW = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)
FIRST, SECOND = "a" * 40, "b" * 40


class Answerer:
    """A project whose pull request 7 waits for a label."""

    def __init__(self, workspace: Workspace, github: GitHubServer) -> None:
        self.workspace, self.github = workspace, github

    def set(self, *shas: str, reason: str = "it is from a fork") -> None:
        """Have pull requests from 7 on with these heads."""
        heads = {7 + index: Head(sha, NOW, "waiting", reason) for index, sha in enumerate(shas)}
        keep_watched(self.workspace, Watched(heads=heads))

    def answer(self, now: datetime = NOW) -> list[str]:
        return publish_answers(self.workspace, now)

    def checks(self) -> list[tuple[str, str, str | None]]:
        """The head, status and conclusion of each check run."""
        return [(run["head_sha"], run["status"], run.get("conclusion")) for run in self.github.check_runs.runs.values()]

    def comments(self) -> list[Any]:
        return [one["body"] for one in self.github.pulls.comments.values()]


@pytest.fixture
def answerer(make_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch) -> Iterator[Answerer]:
    monkeypatch.setenv(VARIABLE, TOKEN)
    with github_server() as github:
        own = {"repository": github.pulls.repository, "api": github.url}
        yield Answerer(Workspace(make_project(github=own, pull_requests={})), github)


def test_an_answer_is_sent_once_and_again_when_it_changes(answerer: Answerer) -> None:
    answerer.set(FIRST)
    assert answerer.answer() == ["7: answered"]
    assert answerer.answer() == []
    assert answerer.checks() == [(FIRST, "queued", None)]
    answerer.set(FIRST, reason="another reason")
    assert answerer.answer() == ["7: answered"]
    assert len(answerer.comments()) == len(answerer.checks()) == 1
    assert "another reason" in answerer.comments()[0]


def test_the_checks_of_an_older_commit_and_of_a_closed_one_do_not_stay_pending(answerer: Answerer) -> None:
    answerer.set(FIRST)
    answerer.answer()
    answerer.set(SECOND)
    answerer.answer()
    assert answerer.checks() == [(FIRST, "completed", "cancelled"), (SECOND, "queued", None)]
    assert len(answerer.comments()) == 1
    answerer.set()
    answerer.answer()
    assert answerer.checks()[1] == (SECOND, "completed", "cancelled")
    steps = len(answerer.github.check_runs.steps)
    answerer.answer()
    assert len(answerer.github.check_runs.steps) == steps


def test_a_pull_request_that_is_opened_again_has_no_cancelled_check(answerer: Answerer) -> None:
    answerer.set(FIRST)
    answerer.answer()
    answerer.set()
    answerer.answer()
    assert answerer.checks() == [(FIRST, "completed", "cancelled")]
    answerer.set(FIRST)
    answerer.answer()
    assert [status for _, status, _ in answerer.checks()] == ["queued"]


@pytest.mark.parametrize("status", [403, 404, 422])
def test_a_check_that_can_no_longer_be_changed_keeps_no_answer_back(answerer: Answerer, status: int) -> None:
    """It was made by an App that was replaced, or its commit is gone."""
    answerer.set(FIRST)
    answerer.answer()
    answerer.github.check_runs.fault = Fault(status, times=1, method="PATCH")
    answerer.set(SECOND)
    assert answerer.answer() == ["7: answered"]
    assert answerer.checks()[1] == (SECOND, "queued", None)
    answerer.github.check_runs.fault = Fault(status, times=1, method="PATCH")
    answerer.set()
    assert answerer.answer() == []
    asked = answerer.github.check_runs.requests
    assert answerer.answer() == []
    assert answerer.github.check_runs.requests == asked


def test_the_check_of_an_app_that_was_replaced_is_made_anew(answerer: Answerer) -> None:
    answerer.set(FIRST)
    answerer.answer()
    answerer.github.check_runs.fault = Fault(403, times=1, method="PATCH")
    answerer.set(FIRST, reason="another reason")
    assert answerer.answer() == ["7: answered"]
    assert answerer.checks() == [(FIRST, "queued", None)] * 2


def test_a_check_that_may_not_be_written_is_an_error_each_time(answerer: Answerer) -> None:
    answerer.set(FIRST)
    answerer.answer()
    answerer.github.check_runs.fault = Fault(403, times=9)
    answerer.set(FIRST, reason="another reason")
    for _ in range(2):
        with pytest.raises(AccelCiError, match="has no right to it"):
            answerer.answer()


def test_another_project_and_another_app_have_checks_of_their_own(answerer: Answerer) -> None:
    answerer.set(FIRST)
    answerer.answer()
    [ours] = answerer.github.check_runs.runs.values()
    answers = answerer.workspace.project.home / "pull_requests" / "answers.json"
    answers.unlink()  # another project on the same repository knows nothing of ours
    answerer.answer()
    assert len(answerer.checks()) == 2
    assert len({run["external_id"] for run in answerer.github.check_runs.runs.values()}) == 2
    assert ours["name"] == answerer.github.check_runs.runs[max(answerer.github.check_runs.runs)]["name"]


def test_a_rate_limit_pauses_the_ends_of_checks_too(answerer: Answerer) -> None:
    answerer.set(FIRST, SECOND)
    answerer.answer()
    answerer.set()
    answerer.github.check_runs.fault = Fault(403, times=1, headers={"Retry-After": "120"}, method="PATCH")
    assert "rate limit" in answerer.answer()[0]
    asked = answerer.github.check_runs.requests
    assert "used up until" in answerer.answer()[0]
    assert answerer.github.check_runs.requests == asked
    answerer.answer(NOW + timedelta(seconds=121))
    assert [status for _, status, _ in answerer.checks()] == ["completed"] * 2


def test_a_pass_ends_in_time_and_the_next_one_goes_on(answerer: Answerer) -> None:
    answerer.set(FIRST, SECOND)
    assert publish_answers(answerer.workspace, NOW, limit_s=0) == [
        "7: answered", "the other pull requests wait for the next tick",
    ]  # fmt: skip
    assert publish_answers(answerer.workspace, NOW, limit_s=0) == ["8: answered"]


def test_what_was_created_and_not_recorded_is_found_again(answerer: Answerer) -> None:
    answerer.set(FIRST)
    answerer.github.check_runs.fault = Fault(502, is_done=True, method="POST")
    with pytest.raises(AccelCiError, match="HTTP 502"):
        answerer.answer()
    faults = iter([502])
    answerer.github.pulls.fault = lambda method, path: next(faults, None) if method == "POST" else None
    with pytest.raises(AccelCiError, match="HTTP 502"):
        answerer.answer()
    assert answerer.answer() == ["7: answered"]
    assert len(answerer.comments()) == len(answerer.checks()) == 1


def test_a_stranger_s_comment_with_our_marker_is_left_alone(answerer: Answerer) -> None:
    answerer.set(FIRST)
    answerer.answer()
    [ours] = answerer.comments()
    stolen = f"{ours}\nmine"
    answerer.github.pulls.comments[9_000_000_000] = {"id": 9_000_000_000, "issue": 7, "body": stolen}
    answerer.set(FIRST, reason="another reason")
    answerer.answer()
    assert answerer.github.pulls.comments[9_000_000_000]["body"] == stolen


def test_a_comment_that_somebody_deleted_is_made_anew(answerer: Answerer) -> None:
    answerer.set(FIRST)
    answerer.answer()
    answerer.github.pulls.comments.clear()
    answerer.set(FIRST, reason="another reason")
    answerer.answer()
    assert len(answerer.comments()) == 1


def test_one_refusal_keeps_no_other_answer_back(answerer: Answerer) -> None:
    answerer.set(FIRST, SECOND)
    answerer.github.check_runs.fault = Fault(422, method="POST")
    lines = answerer.answer()
    assert [line.split(":")[0] for line in lines] == ["7", "8"]
    assert lines[1] == "8: answered"


def test_an_outage_fails_and_the_refusal_of_one_does_not(answerer: Answerer) -> None:
    answerer.set(FIRST)
    answerer.answer()
    answerer.set(FIRST, SECOND)
    answerer.github.check_runs.fault = Fault(422, method="POST")
    [line] = answerer.answer()
    assert line.startswith("8: ")
    answerer.github.check_runs.fault = Fault(503, method="POST")
    with pytest.raises(AccelCiError, match=r"8: .*503"):
        answerer.answer()
    answerer.github.check_runs.fault = None
    assert answerer.answer() == ["8: answered"]


def test_a_rate_limit_pauses_all_answers(answerer: Answerer) -> None:
    answerer.set(FIRST, SECOND)
    answerer.github.check_runs.fault = Fault(403, headers={"Retry-After": "120"}, method="POST")
    assert "rate limit" in answerer.answer()[0]
    asked = answerer.github.check_runs.requests
    assert "used up until" in answerer.answer()[0]
    assert answerer.github.check_runs.requests == asked
    assert answerer.answer(NOW + timedelta(seconds=121)) == ["7: answered", "8: answered"]


def test_the_first_failure_is_in_the_pending_check_while_the_run_goes_on(answerer: Answerer) -> None:
    workspace, build = answerer.workspace, Build("pr-7-aaaaaaaaaaaa", "py3")
    source = Source("repository", "refs/pull/7/head", FIRST)
    workspace.manifests.add_revision(Revision(build.revision, "pr", NOW, source, source))
    manifests, run = workspace.manifests, PipelineRun("run", NOW, stage="device_test_results")
    manifests.write(manifests.run_file(INTEGRATION, build), run)
    head = Head(FIRST, NOW, "started", "", build.revision, ("py3",))
    keep_watched(workspace, Watched(heads={7: head}))
    with FileLock(manifests.pipeline_lock_file(INTEGRATION, build)):
        answerer.answer()
        manifests.note_early_failure(build, "unit: test_a.py::test_1 has failed, and runs again")
        answerer.answer()
        titles = [one["output"]["title"] for one in answerer.github.check_runs.runs.values()]
        early = "pending: running at device_test_results; unit: test_a.py::test_1 has failed, and runs again"
        assert early in titles
        manifests.note_early_failure(build, None)
        answerer.answer()
        assert early not in [one["output"]["title"] for one in answerer.github.check_runs.runs.values()]


def test_no_secret_is_in_an_answer(answerer: Answerer) -> None:
    answerer.set(FIRST, reason=f"the token {TOKEN}")
    answerer.answer()
    assert TOKEN not in str(answerer.comments()) + str(answerer.github.check_runs.runs)


def write_pull_request(workspace: Workspace, told: Told, base: int, target: str | None = None) -> Head:
    """Lay the finished build of a pull request on disk, whose merge base is the commit of the number `base`."""
    build = Build(f"pr-7-{FIRST[:12]}", "py3")
    backend, upstream = Source("backend", "refs/pull/7/head", FIRST), Source("upstream", "main", sha(0))
    workspace.manifests.add_revision(Revision(build.revision, "pr", TODAY, backend, upstream, target=target))
    write_attempts(workspace.results, build, TODAY.date(), attempts_of(told, TODAY))
    chosen = ChosenTests("all tests", base=sha(base))
    selection = TestSelection(Artifact("0" * 64, "tests.json", 2), (SuiteSelection("unit", 1, 1, {}),), 1.0, subset=chosen)
    workspace.manifests.write(workspace.manifests.path(TEST_SELECTION, build.revision, build.variant), selection)
    write_ledger(workspace, build, "of the change")
    run = PipelineRun("run", TODAY, TODAY, LEDGER, reported=True)
    workspace.manifests.write(workspace.manifests.run_file(INTEGRATION, build), run)
    return Head(FIRST, NOW, "started", revision=build.revision, variants=(build.variant,))


def test_a_base_that_is_tested_later_completes_the_answer(answerer: Answerer) -> None:
    workspace = answerer.workspace
    head = write_pull_request(workspace, {BROKEN[0]: FAILS, BROKEN[1]: FAILS}, base=5)
    keep_watched(workspace, Watched(heads={7: head}))

    def answered() -> tuple[list[str], str]:
        lines = answerer.answer()
        [run] = answerer.github.check_runs.runs.values()
        return lines, run["output"]["title"]

    assert answered() == (["7: answered"], "2 not known yet")
    assert answered()[0] == []
    write_night(workspace, NIGHTS - 2, {BROKEN[0]: FAILS, BROKEN[1]: FAILS}, backend=4)
    assert answered() == (["7: answered"], "2 broken in the base, too"), "by the newest build of the branch, for want of one"
    assert answered()[0] == []
    base = write_night(workspace, NIGHTS, {BROKEN[0]: FAILS}, backend=5)
    assert answered() == (["7: answered"], "1 new, 1 broken in the base, too"), "by the merge base, tested after the change"
    assert "the merge base" in answerer.comments()[0]
    write_attempts(workspace.results, base, TODAY.date(), attempts_of({BROKEN[0]: FAILS, BROKEN[1]: FAILS}, TODAY))
    path = workspace.manifests.path(LEDGER, base.revision, base.variant)
    workspace.manifests.write(path, replace(workspace.manifests.read(path, Ledger), digest="built again"))
    assert answered() == (["7: answered"], "2 broken in the base, too")
    write_night(workspace, NIGHTS + 1, {}, backend=5)
    write_night(workspace, NIGHTS + 2, {}, backend=6)
    assert answered()[0] == [], "later builds, of the same commit or another one, concern no earlier change"
    assert len(answerer.comments()) == len(answerer.checks()) == 1


def test_a_pull_request_for_another_branch_is_compared_with_builds_of_that_branch_alone(answerer: Answerer) -> None:
    workspace = answerer.workspace
    write_night(workspace, NIGHTS - 2, {BROKEN[0]: FAILS}, backend=4)
    failing = {BROKEN[0]: FAILS, BROKEN[1]: FAILS}
    head = write_pull_request(workspace, failing, base=5, target="refs/heads/release-1")
    pull = PullRequest(7, FIRST, base="release-1", is_for_default=False)

    def answered(target: PullRequest) -> tuple[str, str]:
        keep_watched(workspace, Watched(pulls={7: target}, heads={7: head}))
        answerer.answer()
        [run] = answerer.github.check_runs.runs.values()
        return run["output"]["title"], answerer.comments()[0]

    title, comment = answered(pull)
    assert title == "2 not known yet", "a nightly of another branch tells nothing"
    assert "no build of <code>release-1</code>" in comment
    below, source = Build("pr-6-000000000005", "py3"), Source("backend", "refs/pull/6/head", sha(5))
    workspace.manifests.add_revision(Revision(below.revision, "pr", TODAY - timedelta(hours=1), source, source))
    write_attempts(workspace.results, below, TODAY.date(), attempts_of({BROKEN[0]: FAILS}, TODAY))
    write_ledger(workspace, below, "of the change below")
    title, comment = answered(pull)
    assert (title, "the merge base" in comment) == ("1 new, 1 broken in the base, too", True), "it is stacked on this one"
    shutil.rmtree(workspace.manifests.builds / below.revision)
    write_night(workspace, NIGHTS - 1, {BROKEN[1]: FAILS}, backend=6, branch="refs/heads/release-1")
    assert answered(pull)[0] == "1 new, 1 broken in the base, too"
    title, comment = answered(replace(pull, base="main", is_for_default=True))
    assert title == "1 new, 1 broken in the base, too"
    assert f"nightly-{TODAY - timedelta(days=1):%Y%m%d}" in comment, (
        "the newest build, now that it is for the default branch"
    )


def test_a_locked_conversation_is_told_once_and_tried_again_when_the_pull_request_changes(answerer: Answerer) -> None:
    pulls = answerer.github.pulls
    pulls.open(7, FIRST)

    def answer() -> tuple[list[str], int]:
        """The lines of a tick, and the number of its requests to comment."""
        pull = read_pull_request(pulls.pulls[7], pulls.repository)
        assert pull is not None
        keep_watched(answerer.workspace, Watched(pulls={7: pull}, heads={7: Head(FIRST, NOW, "waiting", "it waits")}))
        before = len(pulls.requests)
        return answerer.answer(), sum(method == "POST" for method, _, _ in pulls.requests[before:])

    pulls.lock(7)
    assert answer() == (["7: answered, but for the comment: its conversation is locked"], 1)
    assert answer() == ([], 0)
    assert answerer.checks() == [(FIRST, "queued", None)], "check runs are not locked"
    pulls.label(7, "other")
    assert answer()[1] == 1
    assert answer() == ([], 0)
    pulls.lock(7, locked=False)
    assert answer() == (["7: answered"], 1)
    assert answer() == ([], 0)
    assert len(answerer.comments()) == 1
