"""A loopback server in front of a real S3 server that answers 503 or breaks connections on request."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class FlakyServer(ThreadingHTTPServer):
    """Passes requests on unless it is `away`, and drops the answers to the next `lose_answers` `PUT`s.

    It is away when `away` is set, and while `away_while` returns True. With `ignore_conditions` no `PUT` is refused, as by
    an old store. With `refuse_deletes` it answers like a store whose policy forbids that: a list of errors, with status 200.
    """

    daemon_threads = True

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = urlsplit(behind).netloc
        self.away = threading.Event()
        self.away_while: Callable[[], bool] = lambda: False
        self.refused = 0
        self.lose_answers = 0
        self.refuse_deletes = False
        self.ignore_conditions = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FlakyServer

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.away.is_set() or self.server.away_while():
            self.server.refused += 1
            self._answer(503, b"<Error><Code>SlowDown</Code></Error>", {})
            return
        if self.server.refuse_deletes and self.command == "POST" and "delete" in urlsplit(self.path).query:
            refused = b"<Error><Key>a</Key><Code>AccessDenied</Code><Message>not yours</Message></Error>"
            self._answer(200, b"<DeleteResult>" + refused + b"</DeleteResult>", {"Content-Type": "application/xml"})
            return
        behind = http.client.HTTPConnection(self.server.behind, timeout=30)
        behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "expect"):
                behind.putheader(name, value)
        behind.endheaders(body)
        answer = behind.getresponse()
        content = answer.read()
        behind.close()
        if self.command == "PUT" and self.server.lose_answers > 0:
            self.server.lose_answers -= 1
            self.close_connection = True
            return
        if answer.status == 412 and self.server.ignore_conditions:
            self._answer(200, b"", {"ETag": '"0"'})
            return
        self._answer(answer.status, content, dict(answer.headers))

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
        if status not in (204, 304):
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD" and status not in (204, 304):
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def flaky_server(behind: str) -> Iterator[FlakyServer]:
    """A server in front of the one at the URL `behind`."""
    server = FlakyServer(behind)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
