"""The client of GitHub's REST API, over real HTTP to a stand-in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path

import pytest

from accel_ci.config.github_settings import GitHub
from accel_ci.errors import ConfigError
from accel_ci.github.answers import is_paused
from accel_ci.github.client import TOKEN as VARIABLE
from accel_ci.github.client import GitHubError, GitHubRequests, RateLimitError, open_github
from accel_ci_tests.fixtures.github_app import APP_ID, app_key
from accel_ci_tests.fixtures.github_server import TOKEN, GitHubServer, github_server

REPOSITORY = "org/backend"
PULLS = f"repos/{REPOSITORY}/pulls?state=open&per_page=100"


@pytest.fixture
def server() -> Iterator[GitHubServer]:
    with github_server() as running:
        for number in (1, 2, 3):
            running.pulls.open(number, "a" * 40)
        yield running


@pytest.fixture
def github(server: GitHubServer) -> Iterator[GitHubRequests]:
    with GitHubRequests(server.url, lambda: TOKEN) as requests:
        yield requests


def test_all_pages_are_read(server: GitHubServer, github: GitHubRequests) -> None:
    server.pulls.per_page = 1
    assert sorted(one["number"] for one in github.pages(PULLS)) == [1, 2, 3]
    assert len(server.pulls.requests) == 3


def test_an_unchanged_list_is_empty_and_its_etag_stays(server: GitHubServer, github: GitHubRequests) -> None:
    etags: dict[str, str] = {}
    assert len(list(github.pages(PULLS, etags))) == 3
    assert list(github.pages(PULLS, etags)) == []
    server.pulls.label(2, "bug")
    assert len(list(github.pages(PULLS, etags))) == 3
    assert [status for _, _, status in server.pulls.requests] == [200, 304, 200]


def test_the_clock_is_github_s(server: GitHubServer, github: GitHubRequests) -> None:
    github.get(PULLS)
    assert github.clock(server.pulls.now.replace(year=1999)) == server.pulls.now


def test_a_fault_is_tried_again_for_what_changes_nothing_alone(server: GitHubServer, github: GitHubRequests) -> None:
    faults = iter([502, 502])
    server.pulls.fault = lambda method, path: next(faults, None)
    assert len(github.get(PULLS).document) == 3
    server.pulls.fault = lambda method, path: 502
    with pytest.raises(GitHubError, match="HTTP 502") as caught:
        github.send("POST", f"repos/{REPOSITORY}/issues/1/comments", {"body": "b"})
    assert caught.value.status == 502
    assert [method for method, _, _ in server.pulls.requests] == ["GET", "GET", "GET", "POST"]


@pytest.mark.parametrize("limit", [(429, {"Retry-After": "90"}), (403, {"X-RateLimit-Remaining": "0"})])
def test_a_rate_limit_ends_at_once(server: GitHubServer, github: GitHubRequests, limit: tuple[int, dict[str, str]]) -> None:
    server.pulls.limit = limit
    with pytest.raises(RateLimitError) as caught:
        github.get(PULLS)
    assert caught.value.wait_s >= 60


def test_the_end_of_a_limit_is_a_time_of_github_s_clock(server: GitHubServer, github: GitHubRequests) -> None:
    """That of this machine may be hours away."""
    at = datetime(2001, 2, 3, 4, 5, 6, tzinfo=timezone.utc)
    reset = str(int(at.timestamp()) + 90)
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset, "Date": format_datetime(at, usegmt=True)}
    server.pulls.limit = (403, headers)
    with pytest.raises(RateLimitError) as caught:
        github.get(PULLS)
    assert caught.value.wait_s == 90


def test_a_pause_ends_although_the_clock_was_put_back() -> None:
    until = datetime(2026, 11, 30, tzinfo=timezone.utc)
    assert is_paused(until, until - timedelta(seconds=90))
    assert not is_paused(until, until)
    assert not is_paused(until, until - timedelta(days=300))
    assert not is_paused(None, until)


def test_the_token_goes_to_no_other_place(server: GitHubServer, github: GitHubRequests) -> None:
    with pytest.raises(GitHubError, match="another place"):
        github.get(server.url.replace("127.0.0.1", "localhost") + "/" + PULLS)
    assert server.pulls.requests == []


def test_nobody_there_is_an_error_that_can_be_tried_again() -> None:
    with GitHubRequests("http://127.0.0.1:9", lambda: None) as requests, pytest.raises(GitHubError) as caught:
        requests.get(PULLS)
    assert caught.value.status is None
    assert "cannot be reached" in str(caught.value)


def test_a_refused_token_is_named(server: GitHubServer) -> None:
    refused = pytest.raises(GitHubError, match=re.escape(f"check ${VARIABLE}"))
    with GitHubRequests(server.url, lambda: "ghp_of-somebody-else") as requests, refused as caught:
        requests.get(PULLS)
    assert "ghp_of" not in str(caught.value)


def test_the_token_comes_from_the_variable(server: GitHubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = GitHub(repository=REPOSITORY, api=server.url)
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="is not set"):
        open_github(settings, tmp_path)
    monkeypatch.setenv(VARIABLE, TOKEN)
    with open_github(settings, tmp_path) as requests:
        assert len(requests.get(PULLS).document) == 3


def test_an_app_gets_a_token_and_a_new_one_for_one_that_was_revoked(server: GitHubServer, tmp_path: Path) -> None:
    (tmp_path / "app.pem").write_text(app_key())
    server.app.installations["org"] = 7
    settings = GitHub.model_validate(
        {"repository": REPOSITORY, "api": server.url, "app": {"id": APP_ID, "private_key_file": "app.pem"}}
    )
    with open_github(settings, tmp_path) as requests:
        assert len(requests.get(PULLS).document) == 3
        server.app.tokens.clear()
        assert len(requests.get(PULLS).document) == 3


def test_an_app_without_a_key_says_which_file(tmp_path: Path) -> None:
    settings = GitHub.model_validate({"repository": REPOSITORY, "app": {"id": 1, "private_key_file": "none.pem"}})
    with pytest.raises(ConfigError, match=r"none\.pem cannot be read"):
        open_github(settings, tmp_path)
