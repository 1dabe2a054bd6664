"""The web server for dispatches, over real HTTP."""

from __future__ import annotations

import hmac
import json
import socket
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from accel_ci.config.settings import Project
from accel_ci.process.waiting import poll
from accel_ci.relay.downstream.deliveries import Deliveries, deliveries_of
from accel_ci.relay.downstream.receive import PATH, server_settings
from accel_ci.relay.messages import LARGEST_DISPATCH
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.relay import event, pull_request

SECRET = b"a secret of the webhook"
BODY = event(pull_request("a" * 40))


class Receiver:
    """The server, and what it has stored."""

    def __init__(self, url: str, deliveries: Deliveries) -> None:
        self.url, self.deliveries = url, deliveries

    def post(self, body: bytes, secret: bytes = SECRET, **headers: str | None) -> httpx.Response:
        given = {
            "X-GitHub-Event": "repository_dispatch",
            "X-Hub-Signature-256": f"sha256={hmac.new(secret, body, sha256).hexdigest()}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        return httpx.post(self.url, content=body, headers={key: value for key, value in given.items() if value is not None})


@pytest.fixture
def server(make_project: Callable[..., Project]) -> Iterator[Receiver]:
    workspace = Workspace(make_project(relay={}))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        running = uvicorn.Server(server_settings(workspace, SECRET))
        thread = threading.Thread(target=running.run, args=([listening],), daemon=True)
        thread.start()
        import logging

        for _ in poll(logging.getLogger(__name__), "the server", 0.02, 30):
            if running.started:
                break
        yield Receiver(f"http://127.0.0.1:{listening.getsockname()[1]}{PATH}", deliveries_of(workspace))
        running.should_exit = True
        thread.join(30)


def test_a_signed_dispatch_is_stored_once(server: Receiver) -> None:
    first, second = server.post(BODY), server.post(BODY)
    assert (first.status_code, first.json()) == (202, {"ok": True, "delivery_id": "d-1", "new": True})
    assert (second.status_code, second.json()["new"]) == (200, False)
    [kept] = server.deliveries.all()
    assert kept.delivery.change.sha == "a" * 40


def test_what_is_not_signed_or_no_dispatch_is_refused_and_nothing_is_stored(server: Receiver, tmp_path: Path) -> None:
    assert server.post(BODY, b"another secret").status_code == 401
    assert server.post(BODY, X_Hub_Signature_256=None).status_code == 400
    assert server.post(BODY, X_Hub_Signature_256="sha256=").status_code == 401
    assert server.post(BODY, X_Hub_Signature_256="sha1=" + "0" * 40).status_code == 401
    assert (
        server.post(BODY + b" ", X_Hub_Signature_256=f"sha256={hmac.new(SECRET, BODY, sha256).hexdigest()}").status_code
        == 401
    )
    assert server.post(b"{").status_code == 400
    assert server.post(event(pull_request("a" * 40), "../../x")).status_code == 400
    assert server.post(b"x" * (LARGEST_DISPATCH + 1)).status_code == 413
    assert server.post(b"[" * 100_000).status_code == 400
    deep = json.dumps({**pull_request("a" * 40), "x": "deep"}).replace('"deep"', "[" * 300 + "]" * 300)
    assert server.post(event(json.loads(deep))).status_code == 400
    form = server.post(b"payload=%7B%7D", Content_Type="application/x-www-form-urlencoded")
    assert form.status_code == 400
    assert "set the content type of the webhook to application/json" in form.json()["error"]
    ignored = server.post(BODY, b"another secret", X_GitHub_Event="push")
    assert (ignored.status_code, ignored.json()) == (200, {"ignored": True})
    assert httpx.get(server.url).status_code == 405
    assert httpx.post(f"{server.url}/more").status_code == 404
    assert server.deliveries.all() == []


def test_a_connection_that_never_ends_its_headers_is_closed(server: Receiver) -> None:
    address = ("127.0.0.1", urlsplit(server.url).port or 0)
    for sent in (b"", b"POST /github/webhook HTTP/1.1\r\nX-A: "):
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(sent)
            assert connection.recv(100) == b""
    assert server.post(BODY).status_code == 202
