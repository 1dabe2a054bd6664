"""The look at open pull requests: over real HTTP to a stand-in for GitHub, and by refs of a real git repository."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from accel_ci.config.github_settings import PullRequestRefs, PullRequests
from accel_ci.github.client import GitHubError, GitHubRequests
from accel_ci.pull_requests.watched import Watched, look_at_github, look_at_refs
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.github_pulls import StandInPulls
from accel_ci_tests.fixtures.github_server import TOKEN, github_server

NOW = datetime(2026, 11, 30, 18, tzinfo=timezone.utc)
REPOSITORY, LABEL = "org/backend", "ciflow/emu"
POLICY = PullRequests(labels=(LABEL,), trusted_authors=("robin",))
SHAS = [letter * 40 for letter in "abcdef"]


class Looker:
    """Looks again and again, with what the last look left."""

    def __init__(self, url: str, pulls: StandInPulls) -> None:
        self._url, self.pulls, self.watched, self.policy = url, pulls, Watched(), POLICY

    def look(self) -> dict[int, str]:
        """Return the state of each pull request."""
        with GitHubRequests(self._url, lambda: TOKEN) as github:
            self.watched = look_at_github(github, REPOSITORY, self.watched, self.policy, NOW)
        return {number: head.state for number, head in self.watched.heads.items()}


@pytest.fixture
def looker() -> Iterator[Looker]:
    with github_server() as server:
        yield Looker(server.url, server.pulls)


def test_a_stranger_waits_and_everybody_else_is_built(looker: Looker) -> None:
    looker.pulls.open(1, SHAS[0])
    looker.pulls.open(2, SHAS[1], fork="stranger/backend", author="stranger")
    looker.pulls.open(3, SHAS[2], fork="robin/backend", author="robin")
    looker.pulls.open(4, SHAS[3], draft=True)
    looker.pulls.open(5, SHAS[4], fork="stranger/backend", author="robin")
    looker.pulls.pulls[5]["head"]["repo"] = None  # it was deleted
    expected = {1: "allowed", 2: "waiting", 3: "allowed", 4: "passed over", 5: "waiting"}
    assert looker.look() == expected
    assert looker.look() == expected


def test_the_label_must_be_set_after_the_newest_push(looker: Looker) -> None:
    looker.pulls.open(2, SHAS[0], fork="stranger/backend", author="stranger")
    looker.pulls.label(2, LABEL)
    assert looker.look() == {2: "waiting"}, "nobody knows what the label was set on"
    looker.pulls.label(2, LABEL)
    assert looker.look() == {2: "allowed"}
    looker.pulls.push(2, SHAS[1])
    assert looker.look() == {2: "waiting"}
    looker.pulls.label(2, "bug")
    assert looker.look() == {2: "waiting"}
    looker.pulls.label(2, LABEL)
    looker.pulls.push(2, SHAS[2])
    assert looker.look() == {2: "waiting"}, "the push came after the label, both since the last look"
    looker.pulls.label(2, LABEL)
    assert looker.look() == {2: "allowed"}


def test_a_branch_that_was_reset_to_an_older_commit_needs_a_newer_label(looker: Looker) -> None:
    looker.pulls.open(2, SHAS[0], fork="stranger/backend", author="stranger")
    assert looker.look() == {2: "waiting"}
    looker.pulls.push(2, SHAS[1], reset=True)  # harmless, and labelled
    looker.pulls.label(2, LABEL)
    looker.pulls.push(2, SHAS[0])
    assert looker.look() == {2: "waiting"}, "the maintainer has seen another commit"
    looker.pulls.label(2, LABEL)
    assert looker.look() == {2: "allowed"}


@pytest.mark.parametrize("who", ["stranger", "reader", "github-actions[bot]", "../../x"])
def test_only_a_maintainer_s_label_counts(looker: Looker, who: str) -> None:
    looker.pulls.permissions["reader"] = "read"
    looker.pulls.permissions["stranger"] = "write"  # the author never counts
    looker.pulls.open(2, SHAS[0], fork="stranger/backend", author="stranger")
    looker.look()
    looker.pulls.label(2, LABEL, by=who)
    assert looker.look() == {2: "waiting"}


def test_a_label_is_asked_for_again_after_github_failed(looker: Looker) -> None:
    looker.pulls.open(2, SHAS[0], fork="stranger/backend", author="stranger")
    looker.look()
    looker.pulls.label(2, LABEL)
    looker.pulls.fault = lambda method, path: 422 if "events" in path else None
    with pytest.raises(GitHubError):
        looker.look()
    looker.pulls.fault = lambda method, path: None
    assert looker.look() == {2: "allowed"}


def test_a_stranger_s_flood_of_events_keeps_no_other_pull_request_back(looker: Looker) -> None:
    looker.pulls.open(2, SHAS[0], fork="stranger/backend", author="stranger")
    looker.look()
    looker.pulls.label(2, LABEL)
    looker.pulls.events[2] = [{"event": "renamed", "created_at": "2026-11-30T12:00:00Z"}] * 2001
    looker.pulls.open(3, SHAS[1])
    assert looker.look() == {2: "waiting", 3: "allowed"}
    assert "more than 20 pages" in looker.watched.heads[2].reason


@pytest.mark.parametrize("status", [404, 410])
def test_one_that_is_gone_meanwhile_keeps_no_other_back(looker: Looker, status: int) -> None:
    looker.pulls.open(2, SHAS[0], fork="stranger/backend", author="stranger")
    looker.look()
    looker.pulls.label(2, LABEL)
    looker.pulls.open(3, SHAS[1])
    looker.pulls.fault = lambda method, path: status if "issues/2/events" in path else None
    assert looker.look() == {2: "waiting", 3: "allowed"}


def test_a_closed_one_is_gone_and_a_reopened_one_is_new(looker: Looker) -> None:
    looker.pulls.open(2, SHAS[0], fork="stranger/backend", author="stranger")
    looker.look()
    looker.pulls.label(2, LABEL)
    assert looker.look() == {2: "allowed"}
    looker.pulls.close(2)
    assert looker.look() == {}
    looker.pulls.open(2, SHAS[0], fork="stranger/backend", author="stranger", labels=[{"name": LABEL}])
    assert looker.look() == {2: "waiting"}


def test_an_unchanged_repository_costs_one_conditional_request(looker: Looker) -> None:
    looker.pulls.per_page = 100
    for number in range(1, 250):
        looker.pulls.open(number, SHAS[0])
    assert len(looker.look()) == 249
    looker.look()
    looker.pulls.requests.clear()
    assert len(looker.look()) == 249
    assert [status for _, _, status in looker.pulls.requests] == [304]
    looker.pulls.push(7, SHAS[1])
    looker.pulls.requests.clear()
    looker.look()
    assert looker.watched.heads[7].sha == SHAS[1]
    assert len(looker.pulls.requests) == 1


def test_descriptions_of_another_shape_are_passed_over(looker: Looker) -> None:
    looker.pulls.open(1, "; rm -rf /")
    looker.pulls.open(2, SHAS[0], labels="none", user=None)
    looker.pulls.open(3, SHAS[0], state=None)
    assert looker.look() == {2: "allowed"}


def test_refs_that_are_new_since_the_first_look_are_built(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    first = commit(tmp_path, {"a": "1"})
    for number in (1, 2):
        git(tmp_path, "update-ref", f"refs/merge-requests/{number}/head", first)
    refs = PullRequestRefs(pattern="refs/merge-requests/*/head", trust_all=True)
    watched = look_at_refs(str(tmp_path), refs, Watched(), 30, NOW)
    assert watched.heads == {}
    second = commit(tmp_path, {"a": "2"})
    for number in (2, 3):
        git(tmp_path, "update-ref", f"refs/merge-requests/{number}/head", second)
    git(tmp_path, "update-ref", "refs/merge-requests/4/merge", second)
    watched = look_at_refs(str(tmp_path), refs, watched, 30, NOW)
    assert {number: (head.sha, head.state) for number, head in watched.heads.items()} == {
        2: (second, "allowed"), 3: (second, "allowed"),
    }  # fmt: skip
    git(tmp_path, "update-ref", "-d", "refs/merge-requests/3/head")
    assert list(look_at_refs(str(tmp_path), refs, watched, 30, NOW).heads) == [2]
