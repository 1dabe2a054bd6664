"""Polling GitHub for upstream's changes, over real HTTP to a stand-in for its REST API."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from accel_ci.config.settings import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.errors import AccelCiError
from accel_ci.relay.downstream.deliveries import deliveries_of
from accel_ci.relay.downstream.poll import TOKEN, poll_upstream
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.relay import REPOSITORY

NOW = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)
LABEL = "ciflow/crcr/emu"
SECRET = "a-token-that-may-read"


class Upstream:
    """The pull requests and the branch of upstream, as GitHub's API shows them, with pages, ETags and a rate limit."""

    def __init__(self) -> None:
        self.url, self.head = "", "0a" * 20
        self.pulls: dict[int, dict[str, Any]] = {}
        self.requests: list[tuple[str, int]] = []
        self.tokens: set[str | None] = set()
        self.limit: tuple[int, dict[str, str]] | None = None
        self.next_page = ""
        self._changes = 0

    def change(self, number: int, sha: str = "b" * 40, state: str = "open", labels: tuple[str, ...] = ()) -> None:
        """Change a pull request; each change is a second after the last one."""
        self._changes += 1
        at = (NOW + timedelta(seconds=self._changes)).strftime("%Y-%m-%dT%H:%M:%SZ")
        head = {"sha": sha, "ref": "a; rm -rf $HOME", "repo": None}
        self.pulls[number] = {
            "number": number, "state": state, "title": "t", "body": "x" * 5000, "updated_at": at, "head": head,
            "base": {"sha": "c" * 40, "ref": "main", "repo": {"full_name": REPOSITORY}},
            "labels": [{"name": name} for name in labels],
        }  # fmt: skip

    def answer(self, target: str, seen: str | None, token: str | None) -> tuple[int, dict[str, str], bytes]:
        """Answer a request; `seen` is the ETag of what the caller has."""
        self.tokens.add(token)
        parts = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if self.limit is not None:
            status, headers = self.limit
            return status, headers, b'{"message": "API rate limit exceeded"}'
        headers = {}
        found: Any
        if parts.path == f"/repos/{REPOSITORY}/pulls":
            assert (query["state"], query["sort"], query["direction"]) == ("all", "updated", "desc")
            page, per_page = int(query.get("page", 1)), int(query["per_page"])
            latest = sorted(self.pulls.values(), key=lambda one: str(one["updated_at"]), reverse=True)
            found = latest[(page - 1) * per_page : page * per_page]
            if len(latest) > page * per_page:
                following = self.next_page or f"{self.url}{parts.path}?{parts.query}&page={page + 1}"
                headers["Link"] = f'<{self.url}/x>; rel="last", <{following}>; rel="next"'
        elif parts.path == f"/repos/{REPOSITORY}/git/ref/heads/main":
            found = {"ref": "refs/heads/main", "object": {"type": "commit", "sha": self.head}}
        else:
            return 404, {}, b'{"message": "Not Found"}'
        content = json.dumps(found).encode()
        headers["ETag"] = f'W/"{hashlib.sha256(content).hexdigest()}"'
        return (304, headers, b"") if seen == headers["ETag"] else (200, headers, content)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    stand_in = Upstream()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = (self.headers.get("If-None-Match"), self.headers.get("Authorization"))
            status, headers, content = stand_in.answer(self.path, *given)
            stand_in.requests.append((self.path, status))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        stand_in.url = f"http://127.0.0.1:{server.server_port}"
        yield stand_in
        server.shutdown()


@pytest.fixture
def make_poller(make_project: Callable[..., Project], upstream: Upstream) -> Callable[..., Workspace]:
    def make(**poll: Any) -> Workspace:
        return Workspace(make_project(relay={"poll": {"api": upstream.url, **poll}}))

    return make


def found(workspace: Workspace) -> list[str]:
    return sorted(kept.delivery.id for kept in deliveries_of(workspace).all())


def test_only_what_changes_after_the_first_poll_is_built(make_poller: Callable[..., Workspace], upstream: Upstream) -> None:
    workspace = make_poller()
    for number in (1, 2, 3):
        upstream.change(number)
    assert poll_upstream(workspace, NOW) == []
    upstream.change(2, "d" * 40)
    upstream.change(4, "e" * 40)
    upstream.change(3, state="closed")  # its builds, if there were any, are none of this project's
    upstream.head = "0f" * 20
    lines = poll_upstream(workspace, NOW)
    expected = [f"poll-2-{'d' * 12}", f"poll-4-{'e' * 12}", f"poll-main-{'0f' * 6}"]
    assert found(workspace) == sorted(expected)
    assert sorted(line.split(":")[0] for line in lines) == sorted(expected)
    changes = {kept.delivery.id: kept.delivery.change for kept in deliveries_of(workspace).all()}
    change = changes[f"poll-2-{'d' * 12}"]
    assert (change.sha, change.pull_request, change.ref, change.closes) == ("d" * 40, 2, "refs/pull/2/head", False)
    assert (changes[expected[2]].sha, changes[expected[2]].ref) == ("0f" * 20, "refs/heads/main")

    # A comment changes a pull request, and not its commit.
    upstream.change(2, "d" * 40)
    assert poll_upstream(workspace, NOW) == []
    upstream.change(2, "d" * 40, state="closed")
    assert poll_upstream(workspace, NOW) == [f"poll-2-{'d' * 12}-closed: refs/pull/2/head"]
    closed = deliveries_of(workspace).find(f"poll-2-{'d' * 12}-closed")
    assert closed is not None
    assert closed.delivery.change.closes


def test_an_unchanged_upstream_costs_two_conditional_requests(
    make_poller: Callable[..., Workspace], upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, SECRET)
    workspace = make_poller()
    for number in range(1, 250):
        upstream.change(number)
    poll_upstream(workspace, NOW)
    upstream.requests.clear()
    assert poll_upstream(workspace, NOW) == []
    assert [status for _, status in upstream.requests] == [304, 304]
    assert upstream.tokens == {f"Bearer {SECRET}"}
    assert all(SECRET.encode() not in file.read_bytes() for file in workspace.project.home.rglob("*") if file.is_file())


def test_all_pages_with_changes_are_read_and_no_more(make_poller: Callable[..., Workspace], upstream: Upstream) -> None:
    workspace = make_poller()
    for number in range(1, 350):
        upstream.change(number)
    poll_upstream(workspace, NOW)
    for number in range(1, 151):
        upstream.change(number, "d" * 40)
    upstream.requests.clear()
    assert len(poll_upstream(workspace, NOW)) == 150
    assert len(found(workspace)) == 150
    assert len([path for path, _ in upstream.requests if "/pulls" in path]) == 2


def test_a_poll_after_a_long_time_goes_on_with_the_newest_changes(
    make_poller: Callable[..., Workspace], upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    workspace = make_poller(label=LABEL)
    upstream.change(1)
    poll_upstream(workspace, NOW)
    for number in range(2, 2104):
        upstream.change(number, labels=(LABEL,) if number in (2, 2100) else ())
    lines = poll_upstream(workspace, NOW + timedelta(hours=1))
    assert lines == [f"poll-2100-{'b' * 12}: refs/pull/2100/head"]
    assert "passed over" in caplog.text
    upstream.change(3000, labels=(LABEL,))
    assert poll_upstream(workspace, NOW + timedelta(hours=2)) == [f"poll-3000-{'b' * 12}: refs/pull/3000/head"]


def test_only_pull_requests_with_the_label(make_poller: Callable[..., Workspace], upstream: Upstream) -> None:
    workspace = make_poller(label=LABEL)
    upstream.change(1)
    poll_upstream(workspace, NOW)
    upstream.change(1, "d" * 40)
    upstream.change(2, "e" * 40, labels=("bug", LABEL))
    poll_upstream(workspace, NOW)
    assert found(workspace) == [f"poll-2-{'e' * 12}"]
    upstream.change(2, "e" * 40, state="closed")
    poll_upstream(workspace, NOW)
    assert found(workspace) == [f"poll-2-{'e' * 12}", f"poll-2-{'e' * 12}-closed"]


@pytest.mark.parametrize(
    "limit", [(429, {"Retry-After": "90"}), (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "0"})]
)
def test_a_rate_limit_is_respected_and_nothing_is_missed(
    make_poller: Callable[..., Workspace], upstream: Upstream, limit: tuple[int, dict[str, str]]
) -> None:
    workspace = make_poller()
    upstream.change(1)
    poll_upstream(workspace, NOW)
    upstream.change(1, "d" * 40)
    upstream.limit = limit
    assert "rate limit is used up" in poll_upstream(workspace, NOW)[0]
    upstream.limit = None
    upstream.requests.clear()
    assert "rate limit is used up until" in poll_upstream(workspace, NOW)[0]
    assert upstream.requests == []
    poll_upstream(workspace, NOW + timedelta(hours=1))
    assert found(workspace) == [f"poll-1-{'d' * 12}"]


def test_a_refusal_is_an_error_and_the_next_poll_begins_at_the_same_place(
    make_poller: Callable[..., Workspace], upstream: Upstream
) -> None:
    workspace = make_poller()
    upstream.change(1)
    poll_upstream(workspace, NOW)
    upstream.change(1, "d" * 40)
    upstream.limit = (500, {})
    with pytest.raises(AccelCiError, match="HTTP 500"):
        poll_upstream(workspace, NOW)
    upstream.limit = None
    poll_upstream(workspace, NOW)
    assert found(workspace) == [f"poll-1-{'d' * 12}"]


def test_the_token_goes_to_no_other_place(
    make_poller: Callable[..., Workspace], upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, SECRET)
    workspace = make_poller()
    upstream.change(500)
    poll_upstream(workspace, NOW)
    for number in range(1, 250):
        upstream.change(number, "d" * 40)
    # The same server by another name would get the token if the address of the next page were believed.
    upstream.next_page = upstream.url.replace("127.0.0.1", "localhost") + "/elsewhere"
    with pytest.raises(AccelCiError, match="another place"):
        poll_upstream(workspace, NOW)
    assert [path for path, _ in upstream.requests if "elsewhere" in path] == []
    assert found(workspace) == []


def test_a_sensor_polls_where_that_is_enabled(make_project: Callable[..., Project], upstream: Upstream) -> None:
    for enabled in (False, True):
        definitions = build_definitions(make_project(relay={"poll": {"api": upstream.url, "enabled": enabled}}))
        names = {sensor.name for sensor in definitions.get_repository_def().sensor_defs}
        assert ("relay_poll_sensor" in names) == enabled
