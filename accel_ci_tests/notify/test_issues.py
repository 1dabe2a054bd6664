"""The issues of incidents, at a stand-in for GitHub: opened once, kept up to date, closed, and reopened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from accel_ci.config.notify_settings import Issues
from accel_ci.config.settings import Project
from accel_ci.errors import ConfigError
from accel_ci.github.client import TOKEN, GitHubError, GitHubRequests
from accel_ci.notify.current import notify
from accel_ci.notify.issues import plan_steps, read_issues, take_steps
from accel_ci.notify.troubles import Trouble
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.chat_server import Chat
from accel_ci_tests.fixtures.github_issues import StandInIssues

NOW = datetime(2026, 11, 27, 9, tzinfo=timezone.utc)
BROKEN = Trouble(
    "incident-1", True, "backend", "add is wrong", "A change of backend broke it.", "nightly-1", "nightly-2", 4, "team:ops",
    "http://hud/incidents.html#i-1", "accel-ci reproduce nightly-2~py3 a.py::b --run",
)  # fmt: skip


@pytest.fixture
def requests(github_issues: StandInIssues) -> Iterator[GitHubRequests]:
    """A client of the stand-in."""
    with GitHubRequests(github_issues.api, lambda: "token") as client:
        yield client


def sync(requests: GitHubRequests, *troubles: Trouble, now: datetime = NOW, settings: Issues | None = None) -> list[str]:
    """Bring the issues up to date; return the steps that were taken."""
    settings = settings or Issues()
    known = read_issues(requests, "o/r", settings, now)
    steps = plan_steps({trouble.id: trouble for trouble in troubles}, known, settings, now.date())
    take_steps(requests, "o/r", steps)
    return [step.what for step in steps]


def over(trouble: Trouble) -> Trouble:
    """The trouble when it is over."""
    return replace(trouble, is_open=False)


def numbered(count: int) -> list[Trouble]:
    """As many incidents."""
    return [replace(BROKEN, id=f"incident-{number}", title=f"op {number} is wrong") for number in range(count)]


def test_an_issue_lives_with_its_incident(requests: GitHubRequests, github_issues: StandInIssues) -> None:
    assert sync(requests, BROKEN) == ["open an issue on incident-1"]
    assert sync(requests, BROKEN) == []
    assert sync(requests, replace(BROKEN, last="nightly-3")) == ["update the issue on incident-1"]
    assert sync(requests, over(BROKEN)) == ["close the issue on incident-1"]
    assert sync(requests, over(BROKEN)) == []
    assert sync(requests, BROKEN) == ["reopen the issue on incident-1"]
    [issue] = github_issues.issues.values()
    assert issue["title"] == "[backend] add is wrong"
    assert [label["name"] for label in issue["labels"]] == ["accel-ci incident"]
    assert "accel-ci reproduce nightly-2~py3 a.py::b --run" in issue["body"]


def test_an_answer_that_was_lost_makes_no_second_issue(requests: GitHubRequests, github_issues: StandInIssues) -> None:
    github_issues.fails = 1
    with pytest.raises(GitHubError):
        sync(requests, BROKEN)
    assert sync(requests, BROKEN) == []
    assert len(github_issues.issues) == 1


def test_over_the_budget_of_a_day_one_issue_lists_the_rest(requests: GitHubRequests, github_issues: StandInIssues) -> None:
    settings = Issues(a_day=3)
    sync(requests, *numbered(7), settings=settings)
    assert github_issues.texts("open") == [
        "[backend] op 0 is wrong", "[backend] op 1 is wrong", "[backend] op 2 is wrong", "4 more incidents on 2026-11-27",
    ]  # fmt: skip
    assert sync(requests, *numbered(7), settings=settings) == []
    assert sync(requests, *numbered(8), settings=settings) == ["update the list more-2026-11-27"]
    github_issues.created_at = "2026-11-28T08:00:00Z"
    sync(requests, *numbered(7), settings=settings, now=NOW + timedelta(days=1))
    assert "4 more incidents on 2026-11-27" not in github_issues.texts("open")
    assert "1 more incidents on 2026-11-28" in github_issues.texts("open")


class TestPeople:
    def test_an_issue_closed_as_not_planned_stays_closed(
        self, requests: GitHubRequests, github_issues: StandInIssues
    ) -> None:
        sync(requests, BROKEN)
        github_issues.issues[1].update(state="closed", state_reason="not_planned")
        assert [sync(requests, each) for each in (BROKEN, over(BROKEN), BROKEN)] == [[], [], []]

    def test_one_that_a_person_closed_is_reopened_when_the_incident_returns_and_not_before(
        self, requests: GitHubRequests, github_issues: StandInIssues
    ) -> None:
        sync(requests, BROKEN)
        github_issues.issues[1].update(state="closed", state_reason="completed")
        assert sync(requests, BROKEN) == []
        assert sync(requests, over(BROKEN)) == ["note in the issue on incident-1 that it is over"]
        assert sync(requests, BROKEN) == ["reopen the issue on incident-1"]

    def test_issues_of_people_and_pull_requests_are_left_alone(
        self, requests: GitHubRequests, github_issues: StandInIssues
    ) -> None:
        label = {"labels": [{"name": "accel-ci incident"}], "state": "open", "created_at": "2026-11-27T08:00:00Z"}
        github_issues.issues[1] = {**label, "number": 1, "title": "mine", "body": None}
        github_issues.issues[2] = {
            **label, "number": 2, "title": "t", "body": "<!-- accel-ci:incident-1:open -->", "pull_request": {},
        }  # fmt: skip
        assert sync(requests, over(BROKEN)) == []


@pytest.mark.parametrize("title", ["@org/team fails", "fixes #1 o/r#2", "`</code> <!-- accel-ci:incident-9:over -->`"])
def test_hostile_titles_refer_to_nothing(requests: GitHubRequests, github_issues: StandInIssues, title: str) -> None:
    sync(requests, replace(BROKEN, sentence=title, title=title))
    body = github_issues.issues[1]["body"]
    [line] = [line for line in body.splitlines() if line.startswith("`")][:1]
    assert line.startswith("`")
    assert line.endswith("`")
    assert "`" not in line[1:-1]
    assert body.count("<!--") == 1


def test_the_issues_of_a_project_are_asked_for_only_when_something_changed(
    make_project: Callable[..., Project], github_issues: StandInIssues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "a-token-of-github")
    workspace = Workspace(make_project(notify={"issues": {}}, github={"repository": "o/r", "api": github_issues.api}))
    done = [notify(workspace, [each], NOW) for each in (BROKEN, BROKEN, over(BROKEN))]
    assert [each.issues for each in done] == [("open an issue on incident-1",), (), ("close the issue on incident-1",)]
    asked = github_issues.requests
    notify(workspace, [over(BROKEN)], NOW)
    assert github_issues.requests == asked


def test_github_that_is_away_is_asked_again_later_and_chats_are_told_nevertheless(
    make_project: Callable[..., Project], github_issues: StandInIssues, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "a-token-of-github")
    monkeypatch.setenv("CHAT", chat.address("team"))
    routes = {"team": {"urls_from": "CHAT"}}
    github = {"repository": "o/r", "api": github_issues.api}
    workspace = Workspace(make_project(notify={"routes": routes, "issues": {}}, github=github))
    github_issues.fails = 1
    assert notify(workspace, [BROKEN], NOW).faults
    assert len(chat.posts) == 1
    assert notify(workspace, [BROKEN], NOW).faults == ()
    later = notify(workspace, [BROKEN], NOW + timedelta(minutes=6))
    assert later.faults == ()
    assert len(github_issues.issues) == 1


def test_issues_need_the_section_that_names_the_repository(make_project: Callable[..., Project]) -> None:
    with pytest.raises(ConfigError, match="needs the section 'github'"):
        make_project(notify={"issues": {}})
