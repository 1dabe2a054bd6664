"""Requests of the relay to GitHub, of which `repository_dispatch` is the first.

Pauses and tries are decided in `fan_out`; what an answer means, in `accel_ci.github.answers`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from accel_ci.github.answers import HEADERS, Answer, Failed, Sent, read_answer, read_start
from accel_ci.github.authorization import Authorization, NoTokenError

_READ_BYTES = 4096
"""So much of the answer to a refused request is read."""

_LARGEST_ANSWER = 4 << 20


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
