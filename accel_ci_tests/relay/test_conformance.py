"""The webhook's contract, over real HTTP: status, body, and the order of the checks.

The list follows the public relay, except for the answer to what is dispatched: 202 once it is stored.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator

import httpx
import pytest

from accel_ci_tests.fixtures.github_server import TOKEN, Behaviour, GitHubServer, github_server
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.relay_server import SECRET, UPSTREAM, RelayServer, headers_for, pull_request, signed

PUSH = {"ref": "refs/heads/main", "after": "c" * 40, "repository": {"full_name": UPSTREAM}}
OTHER = {"full_name": "upstream/other"}
IGNORED = (200, {"ignored": True})
LABEL = {"name": "ciflow/crcr/emu"}
REQUEST_S = 1.0
TWICE = (400, "the body is refused: a key appears twice in one object")
DISPATCHED = ("opened", "reopened", "synchronize", "closed")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RelayServer, GitHubServer]]:
    """A server with one downstream, and the stand-in for GitHub."""
    with github_server() as github:
        relay = RelayServer(
            tmp_path_factory.mktemp("relay"), github.url, "L3: {emu: {a/b: []}}\n", webhook={"request_s": REQUEST_S}
        )
        relay.start()
        yield relay, github
        relay.stop()


def _with(**changes: str | None) -> Callable[[dict[str, str]], dict[str, str]]:
    """Change the headers of a good webhook; None removes one."""
    named = {"event": "X-GitHub-Event", "signature": "X-Hub-Signature-256", "delivery": "X-GitHub-Delivery"}

    def change(headers: dict[str, str]) -> dict[str, str]:
        found = {**headers, **{named[key]: value for key, value in changes.items() if value is not None}}
        return {
            name: value for name, value in found.items() if name not in {named[k] for k, v in changes.items() if v is None}
        }

    return change


def _nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return b'{"repository":{"full_name":"upstream/project"},"x":' + opening * depth + b"0" + closing * depth + b"}"


BODY = json.dumps(pull_request()).encode()
CASES: dict[str, tuple[bytes, Callable[[dict[str, str]], dict[str, str]], tuple[int, object]]] = {
    # Events that nobody wants are ignored before the signature is looked at.
    **{
        f"event {event!r} {name}": (body, _with(event=event, signature=signature), IGNORED)
        for event in ("ping", "issues", "status", "workflow_run", "installation", "PULL_REQUEST", "")
        for name, body, signature in (("unsigned", BODY, None), ("forged, not JSON", b"{", "sha256=00"))
    },
    "no event": (BODY, _with(event=None), IGNORED),
    # The signature comes before anything of the body.
    "no signature": (BODY, _with(signature=None), (400, "X-Hub-Signature-256 is missing")),
    "empty signature": (BODY, _with(signature=""), (400, "X-Hub-Signature-256 is missing")),
    "no signature, not JSON": (b"{", _with(signature=None), (400, "X-Hub-Signature-256 is missing")),
    "no signature, no delivery": (BODY, _with(signature=None, delivery=None), (400, "X-Hub-Signature-256 is missing")),
    "wrong signature": (BODY, _with(signature="sha256=" + "0" * 64), (401, "the signature is wrong")),
    "wrong signature, not JSON": (b"{", _with(signature="sha256=" + "0" * 64), (401, "the signature is wrong")),
    "wrong signature, no delivery": (BODY, _with(signature="sha256=0", delivery=None), (401, "the signature is wrong")),
    "other secret": (BODY, _with(signature=signed(BODY, "other")), (401, "the signature is wrong")),
    "empty secret": (BODY, _with(signature=signed(BODY, "")), (401, "the signature is wrong")),
    "signature of another body": (BODY, _with(signature=signed(BODY + b" ")), (401, "the signature is wrong")),
    "signature without its name": (BODY, _with(signature=signed(BODY)[7:]), (401, "the signature is wrong")),
    "signature in upper case": (BODY, _with(signature=signed(BODY).upper()), (401, "the signature is wrong")),
    "signature cut short": (BODY, _with(signature=signed(BODY)[:-1]), (401, "the signature is wrong")),
    "sha1": (BODY, _with(signature="sha1=" + "0" * 40), (401, "the signature is wrong")),
    # The id of the delivery is the key of everything after it.
    "no delivery": (BODY, _with(delivery=None), (400, "X-GitHub-Delivery is missing, or is no id")),
    "delivery with a path": (BODY, _with(delivery="../x"), (400, "X-GitHub-Delivery is missing, or is no id")),
    "delivery with a quote": (BODY, _with(delivery="a' OR 1=1"), (400, "X-GitHub-Delivery is missing, or is no id")),
    "delivery too long": (BODY, _with(delivery="a" * 101), (400, "X-GitHub-Delivery is missing, or is no id")),
    # The body.
    "not JSON": (b"{", _with(), (400, "the body is refused: not JSON in UTF-8")),
    "empty body": (b"", _with(), (400, "the body is refused: not JSON in UTF-8")),
    "a form, GitHub's default": (
        b"payload=%7B%22a%22%3A1%7D",
        _with(),
        (400, "the body is refused: not JSON in UTF-8; set the content type of the webhook to application/json"),
    ),
    "not UTF-8": (b'{"a":"\xff"}', _with(), (400, "the body is refused: not JSON in UTF-8")),
    "UTF-16": ('{"a":1}'.encode("utf-16"), _with(), (400, "the body is refused: not JSON in UTF-8")),
    "a list": (b"[]", _with(), (400, "the body is refused: not an object")),
    "a number": (b"1", _with(), (400, "the body is refused: not an object")),
    "NaN": (b'{"a":NaN}', _with(), (400, "the body is refused: NaN is not JSON")),
    "a number without end": (b'{"a":' + b"9" * 5000 + b"}", _with(), (400, "the body is refused: not JSON in UTF-8")),
    "two keys": (b'{"action":"x","action":"opened"}', _with(), TWICE),
    "two keys below": (b'{"a":[{"b":1,"\\u0062":2}]}', _with(), TWICE),
    "nested": (_nested(64), _with(), (400, "the body is refused: nested too deeply")),
    "nested objects": (_nested(64, b'{"a":', b"}"), _with(), (400, "the body is refused: nested too deeply")),
    "nested beyond any stack": (_nested(500_000), _with(), (400, "the body is refused: nested too deeply")),
    # Other repositories, and odd shapes.
    "other repository": (json.dumps({**PUSH, "repository": OTHER}).encode(), _with(event="push"), IGNORED),
    "no repository": (b"{}", _with(event="push"), IGNORED),
    "repository is a text": (b'{"repository":"upstream/project"}', _with(event="push"), IGNORED),
    "name is a number": (b'{"repository":{"full_name":1}}', _with(event="push"), IGNORED),
    "pull request without action": (json.dumps(PUSH).encode(), _with(), IGNORED),
    "action is a list": (json.dumps({**PUSH, "action": ["opened"]}).encode(), _with(), IGNORED),
    # Actions and events of which nothing follows.
    **{
        f"action {action}": (json.dumps(pull_request(action)).encode(), _with(), IGNORED)
        for action in ("edited", "assigned", "unlabeled", "review_requested", "converted_to_draft", "Opened", "labeled")
    },
    **{
        f"label {label!r}": (json.dumps(pull_request("labeled", label={"name": label})).encode(), _with(), IGNORED)
        for label in ("bug", "ciflow/crcr/", "ciflow/crcr", "ciflow/trunk", "xciflow/crcr/emu", "ciflow/crcr/a b", 5)
    },
    "check_run": (json.dumps({**PUSH, "action": "rerequested"}).encode(), _with(event="check_run"), IGNORED),
    "check_suite": (json.dumps({**PUSH, "action": "rerequested"}).encode(), _with(event="check_suite"), IGNORED),
    "check_run unsigned": (b"{}", _with(event="check_run", signature=None), (400, "X-Hub-Signature-256 is missing")),
    # What is dispatched.
    **{f"dispatched {a}": (json.dumps(pull_request(a)).encode(), _with(delivery=a), (202, a)) for a in DISPATCHED},
    "dispatched label": (json.dumps(pull_request("labeled", label=LABEL)).encode(), _with(delivery="id-l"), (202, "id-l")),
    "dispatched push": (json.dumps(PUSH).encode(), _with(event="push", delivery="id-push"), (202, "id-push")),
    "nested as deeply as allowed": (_nested(62), _with(event="push", delivery="id-nested"), (202, "id-nested")),
    "repository in other case": (
        json.dumps({**PUSH, "repository": {"full_name": UPSTREAM.upper()}}).encode(),
        _with(event="push", delivery="id-case"),
        (202, "id-case"),
    ),
    "hostile texts": (
        json.dumps({**PUSH, "ref": "\x00\ud800'; DROP TABLE relay_deliveries; --"}).encode(),
        _with(event="push", delivery="id-hostile"),
        (202, "id-hostile"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_answers(servers: tuple[RelayServer, GitHubServer], name: str) -> None:
    relay, _ = servers
    body, change, (status, expected) = CASES[name]
    answer = relay.post(body, change(headers_for(body)))
    if status == 202:
        expected = {"ok": True, "queued": True, "delivery_id": expected}
    elif isinstance(expected, str):
        expected = {"detail": expected}
    assert (answer.status_code, answer.json()) == (status, expected)


def test_only_what_is_dispatched_reaches_the_downstream(servers: tuple[RelayServer, GitHubServer]) -> None:
    relay, github = servers
    queued = {str(expected) for _, _, (status, expected) in CASES.values() if status == 202}
    for name, (body, change, (status, _)) in CASES.items():
        if status == 202:
            assert relay.post(body, change(headers_for(body))).status_code == 202, name
    wait_for(lambda: len(github.taken()) == len(queued))
    assert github.taken() == {(delivery, "a/b"): 1 for delivery in queued}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("POST", path, 404) for path in ("/", "/github", "/github/webhook/", "/github/Webhook", "/x", "//github/webhook")),
        ("GET", "/", 404),
        *((method, "/github/webhook", 405) for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")),
        ("GET", "/healthz", 200),
        ("GET", "/metrics", 200),
    ],
)
def test_paths_and_methods(servers: tuple[RelayServer, GitHubServer], method: str, path: str, status: int) -> None:
    relay, _ = servers
    url = relay.url.removesuffix("/github/webhook") + path
    answer = httpx.request(method, url, headers=headers_for(BODY), content=BODY if method == "POST" else b"", timeout=30)
    assert answer.status_code == status
    if status >= 400 and method != "HEAD":
        assert answer.json() == {"detail": {404: "Not found", 405: "Method not allowed"}[status]}


def test_metrics_count_the_answers(servers: tuple[RelayServer, GitHubServer]) -> None:
    relay, _ = servers
    relay.post(BODY, _with(event="never-seen-event")(headers_for(BODY)))
    text = httpx.get(relay.url.replace("/github/webhook", "/metrics"), timeout=30).text
    assert 'accel_ci_relay_webhooks_total{event="other",status="200"}' in text
    assert "never-seen-event" not in text


def test_large_bodies(servers: tuple[RelayServer, GitHubServer]) -> None:
    relay, _ = servers
    limit = 2 * 1024 * 1024
    fits = BODY + b" " * (limit - len(BODY))
    assert relay.post(fits, headers_for(fits)).status_code == 202
    for large in (fits + b" ", fits * 2):
        answer = relay.post(large, headers_for(large))
        assert (answer.status_code, answer.json()) == (413, {"detail": f"the body has more than {limit} bytes"})

    def endless() -> Iterator[bytes]:
        while True:
            yield b" " * 65536

    headers = headers_for(BODY)
    with contextlib.suppress(httpx.WriteError):  # the server may close before it has read all that was sent
        assert httpx.post(relay.url, content=endless(), headers=headers, timeout=30).status_code == 413


def test_slow_requests_are_ended(servers: tuple[RelayServer, GitHubServer]) -> None:
    relay, _ = servers
    headers = "".join(f"{name}: {value}\r\n" for name, value in headers_for(BODY).items())
    starts: dict[str, tuple[str, bytes]] = {
        "says nothing": ("", b""),
        "drips its headers": ("POST /github/webhook HTTP/1.1\r\nX-A: ", b"a"),
        "drips its body": (f"POST /github/webhook HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: 5000\r\n\r\n", b"a"),
    }
    answers: dict[str, bytes] = {}
    for name, (start, drip) in starts.items():
        with socket.create_connection(_address(relay), timeout=30) as connection:
            connection.sendall(start.encode())
            connection.settimeout(0.1)
            received = b""
            for _ in range(200):
                try:
                    if drip:
                        connection.sendall(drip)
                    if not (part := connection.recv(1000)):
                        break
                    received += part
                except TimeoutError:
                    continue
                except OSError:
                    break
            else:
                pytest.fail(f"the connection that {name} was not closed")
            answers[name] = received.split(b"\r\n")[0]
    assert answers == {"says nothing": b"", "drips its headers": b"", "drips its body": b"HTTP/1.1 408 Request Timeout"}
    assert relay.deliver(pull_request()).status_code == 202


HEAD = b"POST /github/webhook HTTP/1.1\r\nHost: x\r\nX-GitHub-Event: push\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "rest"),
    [
        (b"GET /", b"a"),
        (b"GET / HTTP/1.1\r\nX-A: ", b"a"),
        (b"GET / HTTP/1.1\r\n", b"X-A: a\r\n"),
        (b"", b"\r\n"),
        (HEAD + b"1;", b"a"),
        (HEAD + b"0\r\nX-A: ", b"a"),
    ],
    ids=["address", "header", "many headers", "empty lines", "chunk", "trailer"],
)
def test_what_is_no_body_has_a_limit(servers: tuple[RelayServer, GitHubServer], start: bytes, rest: bytes) -> None:
    """Bytes that the parser puts together keep the whole server busy, longer with each."""
    relay, _ = servers
    sent = 0
    with socket.create_connection(_address(relay), timeout=30) as connection, contextlib.suppress(OSError):
        connection.sendall(start)
        for _ in range(512):
            connection.sendall(rest * (65_536 // len(rest)))
            sent += 1
    assert sent < 512, "32 MiB were taken"
    assert relay.deliver(pull_request()).status_code == 202


def test_large_headers_are_told(servers: tuple[RelayServer, GitHubServer]) -> None:
    relay, _ = servers
    with socket.create_connection(_address(relay), timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX-A: " + b"a" * 65_536)
        assert connection.recv(1000).startswith(b"HTTP/1.1 431 ")


def test_requests_are_not_taken_without_end(servers: tuple[RelayServer, GitHubServer]) -> None:
    """Those that wait on a connection, and the answers that nobody reads, are kept in memory."""
    relay, _ = servers
    asked = b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
    sent = 0
    with socket.create_connection(_address(relay), timeout=30) as connection, contextlib.suppress(ConnectionError):
        for _ in range(1000):
            connection.sendall(asked)
            sent += 1
    assert sent < 1000, "38 MB of requests were taken"
    assert relay.deliver(pull_request()).status_code == 202


def test_a_body_that_ends_early(servers: tuple[RelayServer, GitHubServer]) -> None:
    relay, github = servers
    headers = "".join(f"{name}: {value}\r\n" for name, value in headers_for(BODY, delivery="early").items())
    with socket.create_connection(_address(relay), timeout=30) as connection:
        connection.sendall(f"POST /github/webhook HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: 5000\r\n\r\n{{".encode())
    assert relay.deliver(pull_request(), delivery="after").status_code == 202
    wait_for(lambda: ("after", "a/b") in github.taken())
    assert ("early", "a/b") not in github.taken()
    assert "Traceback" not in relay.log


def test_no_secret_in_the_log(servers: tuple[RelayServer, GitHubServer]) -> None:
    relay, github = servers
    before = len(github.dispatches)
    github.behaviours["a/b"] = Behaviour(500, message=f"you sent {TOKEN}", times=1)
    for name in (SECRET, TOKEN):
        body = json.dumps(pull_request(name)).encode()
        relay.post(body, {**headers_for(body), "X-Hub-Signature-256": name})
        assert relay.deliver({**PUSH, "ref": name}, "push").status_code == 202
    wait_for(lambda: len(github.dispatches) >= before + 2)
    assert "you sent ***" in relay.log
    assert SECRET not in relay.log
    assert TOKEN not in relay.log


def _address(relay: RelayServer) -> tuple[str, int]:
    url = httpx.URL(relay.url)
    assert url.port is not None
    return url.host, url.port
