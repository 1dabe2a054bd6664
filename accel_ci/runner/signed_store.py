"""Requests to an S3 store by pre-signed URLs: connections, time limits and retries.

The meaning of the objects is in `signed_round.py`. A URL is a credential, so no message of this module contains one.
"""

from __future__ import annotations

import http.client
import json
import random
import ssl
import time
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .long_wait import LongWait

PATIENCE_S = 900.0  # seconds for which a request to a store that does not answer is retried
_TIMEOUT_S = 20.0
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_PLAIN_BYTES = 1 << 30


class StoreError(Exception):
    """The store refused a request, or did not answer for too long."""


@dataclass(frozen=True)
class Answer:
    """The store's answer; with more than one try, an earlier try may have taken effect although its answer was lost."""

    status: int
    body: bytes
    etag: str | None
    tries: int


class SignedStore:
    """Requests of one thread, over one connection to each host."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        """Set `patience_s`, which may be changed while requests wait."""
        self.patience_s = patience_s
        self._connections: dict[tuple[str, str], http.client.HTTPConnection] = {}

    def ask(
        self, method: str, url: str, what: str, body: bytes | None = None, headers: Mapping[str, str] | None = None,
        accept: Collection[int] = (200, 204),
    ) -> Answer:  # fmt: skip
        """Make a request, again while the store is away, and return the answer; its status is one of `accept`.

        `what` names the object in messages. Raises `StoreError` when the store refuses, and when it has been away for
        longer than `patience_s`.
        """
        began = time.monotonic()
        wait = LongWait(f"the store, to {method} {what}")
        tries = 0
        while True:
            tries += 1
            try:
                status, data, etag = self._once(method, url, body, headers or {})
                problem = f"status {status}"
            except (OSError, http.client.HTTPException) as error:
                status, problem = 0, type(error).__name__
            if status in accept:
                return Answer(status, data, etag, tries)
            if status and status not in _PASSING:
                advice = "; the signed URL may have expired" if status == 403 else ""
                raise StoreError(f"the store refused to {method} {what} with {problem}{advice}")
            if time.monotonic() - began > self.patience_s:
                raise StoreError(f"the store has not let us {method} {what} for {self.patience_s:g} s; last: {problem}")
            wait.still_waiting()
            if tries > 1 or status:
                time.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0))  # noqa: S311

    def read(self, url: str, what: str) -> Any:
        """Read an object of JSON, gzipped or not. Raises `StoreError`."""
        return parse(self.ask("GET", url, what).body, what)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()

    def _once(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes, str | None]:
        parts = urlsplit(url)
        host = parts.scheme, parts.netloc
        connection = self._connections.get(host) or self._connections.setdefault(host, _connect(*host))
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        try:
            connection.request(method, target, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers.get("ETag")
        except (OSError, http.client.HTTPException):
            connection.close()  # the next request opens it again
            raise


def parse(body: bytes, what: str) -> Any:
    """Parse JSON, gzipped or not. Raises `StoreError`."""
    try:
        return json.loads(_gunzip(body) if body[:2] == b"\x1f\x8b" else body)
    except (ValueError, zlib.error) as error:
        raise StoreError(f"{what} is not the JSON that was expected: {type(error).__name__}") from None


def _gunzip(body: bytes) -> bytes:
    """Unpack a gzip stream within a limit. Raises `ValueError`, `zlib.error`."""
    stream = zlib.decompressobj(31)
    plain = stream.decompress(body, _PLAIN_BYTES)
    if not stream.eof:
        raise ValueError(f"it is cut short, or has more than {_PLAIN_BYTES:,} bytes")
    return plain


def _connect(scheme: str, netloc: str) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(netloc, timeout=_TIMEOUT_S, context=ssl.create_default_context())
    return http.client.HTTPConnection(netloc, timeout=_TIMEOUT_S)
