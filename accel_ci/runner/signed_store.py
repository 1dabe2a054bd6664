"""Requests to an S3 store by pre-signed URLs: patient with a store that is down, silent about the URLs.

Here belong connections, limits and retries. What is asked for is the business of `signed_round.py` and others. A URL is a
credential: no message of this module has one.
"""

from __future__ import annotations

import gzip
import http.client
import json
import random
import ssl
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

PATIENCE_S = 900.0
"""How long a store may be away before a request is given up, in seconds."""

_TIMEOUT_S = 20.0
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0


class StoreError(Exception):
    """The store refused a request, or gave no answer for too long."""


@dataclass(frozen=True)
class Answer:
    """What the store said; after more than one try an earlier one may have had its effect without our hearing of it."""

    status: int
    body: bytes
    etag: str | None
    tries: int


class SignedStore:
    """Requests of one thread, over one connection to each host."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        """Connect to nothing yet; `patience_s` may be changed while requests wait."""
        self.patience_s = patience_s
        self._connections: dict[tuple[str, str], http.client.HTTPConnection] = {}

    def ask(
        self,
        method: str,
        url: str,
        what: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        accept: Collection[int] = (200, 204),
    ) -> Answer:
        """The answer to a request, tried again while the store is away.

        `what` names the object in messages. Raises `StoreError` when the status is none of `accept` and not one that
        passes, and when the store is away for longer than `patience_s`.
        """
        began = time.monotonic()
        tries = 0
        while True:
            tries += 1
            try:
                status, data, etag = self._once(method, url, body, headers or {})
                problem = f"status {status}"
            except (OSError, http.client.HTTPException) as error:
                self._forget(url)
                status, problem = 0, type(error).__name__
            if status in accept:
                return Answer(status, data, etag, tries)
            if status and status not in _AGAIN:
                advice = "; the signed URL may have expired" if status == 403 else ""
                raise StoreError(f"the store refused to {method} {what} with {problem}{advice}")
            if time.monotonic() - began > self.patience_s:
                raise StoreError(f"the store has not let us {method} {what} for {self.patience_s:g} s; last: {problem}")
            if tries > 1 or status:
                time.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0))  # noqa: S311

    def read(self, url: str, what: str) -> Any:
        """The JSON of an object, gzipped or not. Raises `StoreError`."""
        return parse(self.ask("GET", url, what).body, what)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _once(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes, str | None]:
        parts = urlsplit(url)
        connection = self._connections.get((parts.scheme, parts.netloc))
        if connection is None:
            connection = _connect(parts.scheme, parts.netloc)
            self._connections[parts.scheme, parts.netloc] = connection
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request(method, target, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers.get("ETag")

    def _forget(self, url: str) -> None:
        parts = urlsplit(url)
        connection = self._connections.pop((parts.scheme, parts.netloc), None)
        if connection is not None:
            connection.close()


def parse(body: bytes, what: str) -> Any:
    """JSON, gzipped or not. Raises `StoreError`."""
    try:
        return json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
    except (ValueError, OSError, EOFError) as error:
        raise StoreError(f"{what} is not the JSON that it should be: {type(error).__name__}") from None


def _connect(scheme: str, netloc: str) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(netloc, timeout=_TIMEOUT_S, context=ssl.create_default_context())
    return http.client.HTTPConnection(netloc, timeout=_TIMEOUT_S)
