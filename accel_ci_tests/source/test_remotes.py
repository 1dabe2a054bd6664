"""Remotes that cannot be asked: each is one message within the limit, without a prompt, a password, or a program started."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from accel_ci.errors import SourceError
from accel_ci.source.refs import remote_sha, resolve_source

LIMIT_S = 3.0


class _Answers(BaseHTTPRequestHandler):
    """Answers `/CODE/…` with that status, `/silent/…` never, and `/drip/…` a byte a second."""

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        if kind == "silent":
            self.server.ended.wait(60)  # type: ignore[attr-defined]
            return
        self.send_response(200 if kind == "drip" else int(kind))
        for name, value in {"401": {"WWW-Authenticate": 'Basic realm="x"'}, "302": {"Location": "/200/login"}}.get(
            kind, {}
        ).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        while kind == "drip" and not self.server.ended.wait(1):  # type: ignore[attr-defined]
            self.wfile.write(b"0")
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of the server, without its scheme."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as http:
        http.ended = threading.Event()  # type: ignore[attr-defined]
        http.daemon_threads = True
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{http.server_address[1]}"
        http.ended.set()  # type: ignore[attr-defined]
        http.shutdown()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("401/x.git", "prompts disabled; check the credentials"),
        ("403/x.git", "403; check the credentials"),
        ("404/x.git", "not found; correct the address"),
        ("429/x.git", "429; the server limits requests; try again later"),
        ("503/x.git", "503; the server has a problem; try again later"),
        ("200/x.git", "not even HEAD: it is empty, or the address is that of a web page"),
        ("302/x.git", "sends on to another one"),
        ("silent/x.git", "did not answer within 3 s; check the address and the network, or raise limits.git_seconds"),
        ("drip/x.git", "did not answer within 3 s|Operation too slow"),
    ],
)
def test_a_server_that_is_no_repository(
    server: str, path: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    prompt = tmp_path / "prompt"
    prompt.write_text(f"#!/bin/sh\ntouch {asked}\necho answer\n")
    prompt.chmod(0o755)
    for name in ("GIT_ASKPASS", "SSH_ASKPASS"):
        monkeypatch.setenv(name, str(prompt))
    started = time.monotonic()
    with pytest.raises(SourceError, match=message) as caught:
        remote_sha(
            f"http://user:s3cret@{server}/{path}" if "401" not in path else f"http://{server}/{path}",
            "main",
            timeout_s=LIMIT_S,
        )
    assert time.monotonic() - started < LIMIT_S + 20
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not asked.exists()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://127.0.0.1:9/x.git", "Couldn't connect to server; check the address and the network|Failed to connect"),
        ("http://host.invalid/x.git", "check the address and the network"),
        ("file:///nowhere/x.git", "correct the address: no git repository is there"),
        ("ext::sh -c 'touch pwned'", "transport 'ext' not allowed; use one of the transports file, git, http, https, ssh"),
        ("fd::7", "not allowed; use one of the transports"),
        ("evil://x/y", "use one of the transports"),
        ("--upload-pack=touch pwned", "there is no such folder"),
        ("ssh://-oProxyCommand=touch%20pwned/x", "strange hostname|not allowed|failed"),
    ],
)
def test_an_address_that_is_no_repository(
    address: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=message):
        resolve_source(address, "main", ".", tmp_path, timeout_s=10)
    assert list(tmp_path.iterdir()) == []
