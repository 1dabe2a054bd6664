"""Webhooks for `benchmarks/relay.py`: a body like GitHub's, a cheap generator of load, and a server that stores nothing.

The generator writes prepared bytes to raw sockets, so that the server under test has most of the processor. The server that
stores nothing is the peer: starlette on uvicorn, as the relay is, which checks the signature and answers 202.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import selectors
import socket
import statistics
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

from accel_ci_tests.fixtures.relay_server import SECRET, UPSTREAM, headers_for, pull_request

_URLS_OF_PERSON = (
    "avatar", "html", "followers", "following", "gists", "starred", "subscriptions", "organizations", "repos", "events",
    "received_events",
)  # fmt: skip


def webhook(small: bool = False) -> bytes:
    """Return the body of a pull request: 20 KB with the 400 keys that GitHub sends, or one of 500 bytes."""
    payload = pull_request()
    if not small:
        described = payload["pull_request"]
        payload |= {"repository": _repository(), "sender": _person("sender")}
        described |= {"user": _person("author"), "body": "A line of the description.\r\n" * 120}
        for end in ("head", "base"):
            described[end] |= {"repo": _repository(), "user": _person(end)}
    return json.dumps(payload, separators=(",", ":")).encode()


def _person(name: str) -> dict[str, Any]:
    urls = {f"{each}_url": f"https://api.github.com/users/{name}/{each}" for each in _URLS_OF_PERSON}
    return {"login": name, "id": 1234567, "node_id": "MDQ6VXNlcjE=", **urls, "type": "User", "site_admin": False}


def _repository() -> dict[str, Any]:
    urls = {f"part{n}_url": f"https://api.github.com/repos/{UPSTREAM}/part{n}{{/sha}}" for n in range(46)}
    flags = {f"has_{n}": n % 2 == 0 for n in range(20)}
    return {"id": 7654321, "name": "project", "full_name": UPSTREAM, "owner": _person("upstream"), **urls, **flags}


@dataclass(frozen=True)
class Load:
    """The answers of one run. Times are in seconds; `cpu_s` is the generator's own time on the processor."""

    times: Sequence[float]
    took_s: float
    cpu_s: float

    def summary(self) -> dict[str, float]:
        """Return the rate, quantiles of the times, and the generator's processor time for each webhook."""
        return {
            "per_second": round(len(self.times) / self.took_s, 1),
            **quantiles_ms(self.times),
            "accepted": len(self.times),
            "client_cpu_ms": round(self.cpu_s / len(self.times) * 1e3, 3),
        }


def quantiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median, the 99th hundredth and the largest, in milliseconds."""
    hundredths = statistics.quantiles(seconds, n=100)
    return {
        "p50_ms": round(hundredths[49] * 1e3, 1),
        "p99_ms": round(hundredths[98] * 1e3, 1),
        "max_ms": round(max(seconds) * 1e3, 1),
    }


class _Lane:
    """A connection with one request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.began = 0.0
        self._answer = b""

    def send(self, head: bytes, body: bytes, began: float) -> None:
        self.began = began
        self.socket.sendall(b"%b%b\r\n\r\n%b" % (head, str(uuid.uuid4()).encode(), body))

    def has_answer(self) -> bool:
        """Read; return whether the answer is complete. Raises `SystemExit` for another answer than 202."""
        self._answer += self.socket.recv(65536)
        head, end, content = self._answer.partition(b"\r\n\r\n")
        if not end:
            return False
        if not head.startswith(b"HTTP/1.1 202"):
            raise SystemExit(f"the answer was {self._answer[:300]!r}")
        if len(content) < int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]):
            return False
        self._answer = b""
        return True


def send_webhooks(
    url: str,
    body: bytes,
    connections: int,
    seconds: float | None = None,
    count: int | None = None,
    rate: float | None = None,
) -> Load:
    """Send webhooks for so long or so many, over connections that each have one at a time.

    Without `rate`, each connection sends the next one as soon as it has the answer. With it, so many are due each second,
    and the time of an answer counts from when its webhook was due, also if no connection was free then.
    """
    parts = urlsplit(url)
    address = (str(parts.hostname), int(parts.port or 80))
    headers = {**headers_for(body), "Host": "relay", "Content-Length": str(len(body))}
    del headers["X-GitHub-Delivery"]
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {parts.path} HTTP/1.1\r\n{lines}X-GitHub-Delivery: ".encode()
    selector, times = selectors.DefaultSelector(), []
    idle = [_Lane(address) for _ in range(connections)]
    for lane in idle:
        selector.register(lane.socket, selectors.EVENT_READ, lane)
    cpu, began, sent, busy = time.process_time(), time.perf_counter(), 0, 0
    while True:
        now = time.perf_counter()
        is_over = (seconds is not None and now - began >= seconds) or (count is not None and sent >= count)
        while idle and not is_over and (rate is None or began + sent / rate <= now):
            idle.pop().send(head, body, now if rate is None else began + sent / rate)
            sent, busy = sent + 1, busy + 1
            is_over = count is not None and sent >= count
        if is_over and not busy:
            break
        pause = None if rate is None or is_over or not idle else max(0.0, began + sent / rate - time.perf_counter())
        for key, _ in selector.select(pause):
            if key.data.has_answer():
                times.append(time.perf_counter() - key.data.began)
                idle.append(key.data)
                busy -= 1
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    for lane in idle:
        lane.socket.close()
    return Load(times, took, cpu)


def serve_peer(pipe: Connection) -> None:
    """Serve the peer in this process; send its address through the pipe. It runs until it is terminated."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    async def webhook(request: Request) -> Response:
        body = await request.body()
        expected = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        good = hmac.compare_digest(expected, request.headers.get("x-hub-signature-256", ""))
        return JSONResponse({"ok": good}, 202 if good else 401)

    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    pipe.send(f"http://127.0.0.1:{listener.getsockname()[1]}/github/webhook")
    application = Starlette(routes=[Route("/github/webhook", webhook, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(application, http="httptools", ws="none", access_log=False, log_config=None)).run(
        [listener]
    )
