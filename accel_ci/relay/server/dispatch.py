"""Requests to GitHub, of which `repository_dispatch` is the first, and the meaning of its answers.

Pauses and tries are decided in `fan_out`; here is what an answer says.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from accel_ci.errors import AccelCiError

SECONDARY_LIMIT_S = 60.0
"""Pause where GitHub names none: its documentation of rate limits asks for at least a minute."""

LONGEST_WAIT_S = 6 * 3600.0
HEADERS = {
    "Accept": "application/vnd.github+json",
    "X-GitHub-Api-Version": "2022-11-28",
    "Accept-Encoding": "identity",  # a small answer must not become a large one
    "User-Agent": "accel-ci-relay",
    "Content-Type": "application/json",
}
"""Of each request to GitHub's API; its `Authorization` comes with the request."""

_READ_BYTES = 4096
"""So much of the answer to a refused request is read."""

_LARGEST_ANSWER = 4 << 20


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


class NoTokenError(AccelCiError):
    """There is no token for a request; `answer` says what follows, as if GitHub had answered the request with it."""

    def __init__(self, answer: Limited | Failed) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class Authorization(Protocol):
    """The tokens with which a process acts at GitHub. Who made it closes it."""

    async def token(self, repository: str, now: float) -> str:
        """Return a token for a repository. Raises `NoTokenError` and `httpx.HTTPError`."""

    def drop(self, repository: str, token: str) -> bool:
        """Use a token no more that GitHub has refused with 401. Return whether there may be another one."""

    async def close(self) -> None:
        """Close connections."""


@dataclass(frozen=True)
class FixedToken:
    """One token for all repositories, such as a fine-grained one of a user."""

    value: str

    async def token(self, repository: str, now: float) -> str:
        """Return the token."""
        return self.value

    def drop(self, repository: str, token: str) -> bool:
        """Return False: there is no other one."""
        return False

    async def close(self) -> None:
        """Do nothing."""


class GitHubClient:
    """Sends dispatches and other requests over connections that are kept."""

    def __init__(self, api: str, authorization: Authorization, timeout_s: float) -> None:
        """Use the API at an address. `timeout_s` is for each whole request, with that for a token."""
        self._timeout_s, self._authorization = timeout_s, authorization
        self._client = httpx.AsyncClient(
            base_url=api,
            headers=HEADERS,
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def send(self, repository: str, body: bytes, now: float) -> Answer:
        """Send a dispatch. Network errors are answers, too."""
        return (await self._ask("POST", repository, "dispatches", body, now))[0]

    async def request(self, method: str, repository: str, path: str, document: object, now: float) -> tuple[Answer, Any]:
        """Ask for anything else of a repository, at a path below it. Return the meaning of the answer, and its JSON."""
        content = None if document is None else json.dumps(document).encode()
        answer, body = await self._ask(method, repository, path, content, now)
        if not isinstance(answer, Sent):
            return answer, None
        try:
            return answer, json.loads(body)
        except (ValueError, RecursionError):
            return Failed("the answer is no JSON"), None

    async def _ask(self, method: str, repository: str, path: str, content: bytes | None, now: float) -> tuple[Answer, bytes]:
        try:
            return await asyncio.wait_for(self._authorized(method, repository, path, content, now), self._timeout_s)
        except (TimeoutError, asyncio.TimeoutError):
            return Failed(f"no answer within {self._timeout_s:g} s"), b""
        except NoTokenError as error:
            return error.answer, b""
        except httpx.HTTPError as error:
            return Failed(f"{type(error).__name__}: {error}"), b""

    async def _authorized(
        self, method: str, repository: str, path: str, content: bytes | None, now: float
    ) -> tuple[Answer, bytes]:
        token = await self._authorization.token(repository, now)
        status, answer, body = await self._exchange(method, f"/repos/{repository}/{path}", content, token, now)
        if status == 401 and self._authorization.drop(repository, token):
            token = await self._authorization.token(repository, now)
            _, answer, body = await self._exchange(method, f"/repos/{repository}/{path}", content, token, now)
        return answer, body

    async def _exchange(
        self, method: str, path: str, content: bytes | None, token: str, now: float
    ) -> tuple[int, Answer, bytes]:
        headers = {"Authorization": f"Bearer {token}"}
        async with self._client.stream(method, path, content=content, headers=headers) as response:
            limit = _LARGEST_ANSWER if response.is_success else _READ_BYTES
            body = await read_start(response, limit)
            answer = read_answer(response.status_code, response.headers, body, now)
            if response.is_success and len(body) == limit:
                answer = Failed(f"the answer has {limit} bytes or more")
            return response.status_code, answer, body


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
    """Say what an answer of GitHub means. Header names do not depend on case, as in httpx."""
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
        return Failed(f"{reason}: the repository was renamed; correct the allowlist", permanent=True)
    return Failed(reason, permanent=status in (400, 413, 422), wait_s=min(wait_s or 0.0, LONGEST_WAIT_S))


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
