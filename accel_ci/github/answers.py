"""The meaning of GitHub's answers, and the headers of requests to it.

Clients are elsewhere: `client` is the one of sensors and commands, the relay has its own for many requests at once.
The rules are those of GitHub's documentation of rate limits and of best practices for its REST API.
"""

from __future__ import annotations

import email.utils
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

SECONDARY_LIMIT_S = 60.0
"""Pause where GitHub names none: its documentation of rate limits asks for at least a minute."""

LONGEST_WAIT_S = 6 * 3600.0
HEADERS = {
    "Accept": "application/vnd.github+json",
    "X-GitHub-Api-Version": "2022-11-28",
    "Accept-Encoding": "identity",  # a small answer must not become a large one
    "User-Agent": "accel-ci",
    "Content-Type": "application/json",
}
"""Of each request to GitHub's API; its `Authorization` comes with the request."""


@dataclass(frozen=True)
class Sent:
    """GitHub has done what it was asked for."""


@dataclass(frozen=True)
class Limited:
    """The token has used up a rate limit: nothing may be sent to anybody for `wait_s`."""

    wait_s: float
    reason: str


@dataclass(frozen=True)
class Failed:
    """GitHub has not done it. If `permanent`, all tries would fail in this way. GitHub may ask to wait for `wait_s`."""

    reason: str
    permanent: bool = False
    wait_s: float = 0.0


Answer = Sent | Limited | Failed


async def read_start(response: httpx.Response, limit: int) -> bytes:
    """Read an answer up to so many bytes."""
    parts, size = [], 0
    async for part in response.aiter_raw():
        parts.append(part)
        size += len(part)
        if size >= limit:
            break
    return b"".join(parts)[:limit]


def read_answer(status: int, headers: Mapping[str, str], body: bytes, now: float) -> Answer:
    """Read what an answer of GitHub means. Header names do not depend on case, as in httpx."""
    if 200 <= status < 300:
        return Sent()
    message = _message(body)
    reason = f"HTTP {status}{f': {message}' if message else ''}"
    wait_s = _retry_after(headers.get("retry-after"), now)
    if status in (403, 429):
        if wait_s is None and headers.get("x-ratelimit-remaining") == "0":
            reset = headers.get("x-ratelimit-reset", "")
            wait_s = max(1.0, float(reset) - now) if reset.isdecimal() else SECONDARY_LIMIT_S
        if wait_s is None and (status == 429 or "rate limit" in message.lower()):
            wait_s = SECONDARY_LIMIT_S
        if wait_s is not None:
            return Limited(min(wait_s, LONGEST_WAIT_S), reason)
    if 300 <= status < 400:
        return Failed(f"{reason}: the repository was renamed; correct its name", permanent=True)
    return Failed(reason, permanent=status in (400, 413, 422), wait_s=min(wait_s or 0.0, LONGEST_WAIT_S))


def is_paused(until: datetime | None, now: datetime) -> bool:
    """Return whether a pause goes on. One that is longer than GitHub's limits was begun by a clock that was ahead."""
    return until is not None and now < until <= now + timedelta(seconds=LONGEST_WAIT_S)


def _retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait: the header has a number or a date."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return max(1.0, float(value))
    with suppress(ValueError, TypeError):
        return max(1.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    return SECONDARY_LIMIT_S


def _message(body: bytes) -> str:
    """GitHub's `message`, on one line."""
    with suppress(ValueError, RecursionError):
        value = json.loads(body)
        if isinstance(value, dict) and isinstance(value.get("message"), str):
            return "".join(letter if letter.isprintable() else " " for letter in value["message"])
    return ""
