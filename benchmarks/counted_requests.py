"""Count the requests to S3 and to a cluster's API server: of this process, or of others through a proxy on loopback.

Requests are told apart by their method and by the kind of object that they are about.
"""

from __future__ import annotations

import http.client
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Requests = Counter[tuple[str, str]]
"""The number of requests by method (`GET`, `HEAD`, `PUT`, `POST`, `PATCH`, `LIST`, `DELETE`) and kind of object."""

CLUSTER = "cluster/"
"""The beginning of the kinds of a cluster's API server; all others are of S3."""

_ROUND_FOLDERS = "claims", "slots", "workers", "requeued", "charged"
_ROUND_OBJECTS = "plan", "claim_urls", "news", "invitation", "report", "errand", "sources", "runner"
_TOP = "builds", "quality", "rollups", "windows", "results", "artifacts", "hud", "hud.state", "dagster-logs"
_COUNTING: list[Requests] = []
_LINE = re.compile(rb"([A-Z]+) (\S+) HTTP/1")


def kind_of(method: str, target: str) -> tuple[str, str]:
    """Return the method and the kind of object of a request line: of S3 the top folder, of a cluster the resource."""
    parts = urlsplit(target)
    query = parse_qs(parts.query)
    if parts.path.startswith(("/api/", "/apis/")):
        found = re.search(r"/namespaces/[^/]+/(\w+)(?:/[^/]+)?(?:/(\w+))?", parts.path)
        resource = "/".join(filter(None, found.groups())) if found else parts.path.rpartition("/")[2]
        is_list = method == "GET" and found is not None and parts.path.endswith(f"/{found[1]}")
        return "LIST" if is_list else method, f"{CLUSTER}{resource}"
    _, _, key = parts.path.lstrip("/").partition("/")
    if "list-type" in query:
        method, key = "LIST", query.get("prefix", [""])[0]
    elif method == "POST":
        return method, "the form of events" if not parts.query else "others"
    words = key.strip("/").split("/")
    for folder in _ROUND_FOLDERS:
        if folder in words:
            return method, folder
    return method, words[-1] if words[-1] in _ROUND_OBJECTS else next((one for one in words if one in _TOP), "others")


@contextmanager
def requests_of_this_process() -> Iterator[Requests]:
    """Count the requests of boto3, the runner's client and the Kubernetes client while the context lasts."""
    if not _COUNTING:
        sys.addaudithook(_heard)
    counted: Requests = Counter()
    _COUNTING.append(counted)
    try:
        yield counted
    finally:
        _COUNTING[_COUNTING.index(counted)] = Counter()  # a hook stays for good


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "http.client.send" and isinstance(arguments[1], bytes) and (line := _LINE.match(arguments[1])):
        for counted in _COUNTING:
            counted[kind_of(line[1].decode(), line[2].decode())] += 1


@contextmanager
def counting_proxy(endpoint: str) -> Iterator[tuple[str, Requests]]:
    """Yield the address of a proxy in front of an S3 server, and what goes through it.

    Signatures are made for the address of the proxy, which passes it on.
    """
    counted: Requests = Counter()
    behind, local = urlsplit(endpoint), threading.local()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except OSError:
                self.close_connection = True

        def _pass_on(self) -> None:
            counted[kind_of(self.command, self.path)] += 1
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            for _ in range(2):  # a connection that the server has closed meanwhile is opened again
                connection = getattr(local, "connection", None) or http.client.HTTPConnection(behind.netloc, timeout=60)
                local.connection = connection
                try:
                    connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        if name.lower() != "expect":
                            connection.putheader(name, value)
                    connection.endheaders(body or None)
                    answer = connection.getresponse()
                    content = answer.read()
                    break
                except (http.client.HTTPException, OSError):
                    connection.close()
                    local.connection = None
            else:
                self.send_error(503)
                return
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            length = answer.headers.get("Content-Length") if self.command == "HEAD" else str(len(content))
            if answer.status not in (204, 304):
                self.send_header("Content-Length", length or "0")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", counted
        server.shutdown()
