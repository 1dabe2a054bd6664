"""The client of sensors and commands: single requests to GitHub's REST API, one after another.

Tokens, conditional requests, pages, limits of time and size, and tries again belong here; what is asked for, and what
follows from an answer, does not. Only requests that change nothing are tried again: who creates something looks for it
first.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from accel_ci.config.github_settings import GitHub
from accel_ci.errors import AccelCiError, ConfigError
from accel_ci.github.answers import HEADERS, SECONDARY_LIMIT_S, Failed, Limited, read_answer
from accel_ci.github.authorization import NoTokenError
from accel_ci.redaction import OF_THIS_PROCESS

TOKEN = "ACCEL_CI_GITHUB_TOKEN"  # noqa: S105 - the name of a variable
"""The variable with the token, where there is no App."""

_TIMEOUT_S = 30.0
"""For each wait for GitHub; a sensor's tick has 60 s."""

_LARGEST_ANSWER = 32 << 20
_MOST_PAGES = 20
_TRIES = 3
_LONGEST_PAUSE_S = 4.0


class GitHubError(AccelCiError):
    """GitHub has not done what it was asked for; `status` is that of its answer, None where there was none."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TooManyPagesError(GitHubError):
    """A list is longer than what is read of one."""


class RateLimitError(GitHubError):
    """The token has used up a rate limit: nothing may be asked for within `wait_s` seconds."""

    def __init__(self, reason: str, wait_s: float) -> None:
        super().__init__(f"GitHub's rate limit is used up for {wait_s:.0f} s: {reason}", 429)
        self.wait_s = wait_s


@dataclass(frozen=True)
class Page:
    """An answer: its JSON, its ETag, and the address of the next page. `is_new` is False where the ETag still holds."""

    document: Any
    etag: str | None = None
    following: str | None = None
    is_new: bool = True


class GitHubRequests:
    """Requests with a token that is fetched when it is first needed. Make one for each tick or command."""

    def __init__(self, api: str, token: Callable[[], str | None], timeout_s: float = _TIMEOUT_S) -> None:
        """Use the API at an address. `token` returns a token for the requests, None to ask without one."""
        self._api, self._make_token = api.rstrip("/"), token
        self._token: str | None = None
        self._is_known = False
        self._answered_at: datetime | None = None
        self._client = httpx.Client(headers=HEADERS, timeout=timeout_s)

    def __enter__(self) -> GitHubRequests:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()

    def clock(self, otherwise: datetime) -> datetime:
        """Return the time of the last answer by GitHub's clock, by which its events have their times."""
        return self._answered_at or otherwise

    def get(self, path: str, etag: str | None = None) -> Page:
        """Return what is at a path, or at the whole address of a further page. Raises `GitHubError`."""
        try:
            return self._ask_again(path, etag)
        except GitHubError as error:
            if error.status != 401 or not self._is_known:
                raise
            self._is_known = False  # a token of an App may have been revoked: one more try, with a new one
            return self._ask_again(path, etag)

    def pages(self, path: str, etags: dict[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list, page after page. Raises `GitHubError`, `TooManyPagesError` for more than 20 pages.

        With `etags`, by path, there is nothing where the first page has not changed, and its new ETag is put there.
        """
        address: str | None = path
        for _ in range(_MOST_PAGES):
            if address is None:
                return
            first = etags if address == path else None
            page = self.get(address, first.get(path) if first is not None else None)
            if not page.is_new:
                return
            if first is not None and page.etag:
                first[path] = page.etag
            if not isinstance(page.document, list):
                raise GitHubError(f"GitHub's answer to {path} is no list; check github.api")
            yield from (one for one in page.document if isinstance(one, dict))
            address = page.following
        if address is not None:
            raise TooManyPagesError(f"GitHub has more than {_MOST_PAGES} pages of {path}")

    def send(self, method: str, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Create or change something once, and return GitHub's answer. Raises `GitHubError`.

        After an error without a status, nobody knows whether GitHub has done it.
        """
        answer = self._ask(method, path, document, None).document
        if not isinstance(answer, dict):
            raise GitHubError(f"GitHub's answer to {method} {path} is no object")
        return answer

    def _ask_again(self, path: str, etag: str | None) -> Page:
        tries = Retrying(
            stop=stop_after_attempt(_TRIES),
            wait=wait_random_exponential(multiplier=0.5, max=_LONGEST_PAUSE_S),
            retry=retry_if_exception(_may_pass),
            reraise=True,
        )
        return tries(self._ask, "GET", path, None, etag)

    def _ask(self, method: str, path: str, document: Mapping[str, Any] | None, etag: str | None) -> Page:
        address = path if "://" in path else f"{self._api}/{path.lstrip('/')}"
        if urlsplit(address)[:2] != urlsplit(self._api)[:2]:
            raise GitHubError("GitHub's next page is at another place, which must not get the token; check github.api")
        headers = {"Authorization": f"Bearer {token}"} if (token := self._authorization()) else {}
        if etag:
            headers["If-None-Match"] = etag
        content = None if document is None else json.dumps(document).encode()
        body = bytearray()
        try:
            with self._client.stream(method, address, content=content, headers=headers) as answer:
                for part in answer.iter_raw():
                    body += part
                    if len(body) > _LARGEST_ANSWER:
                        raise GitHubError(f"an answer of GitHub is larger than {_LARGEST_ANSWER >> 20} MiB")
        except httpx.HTTPError as error:
            raise GitHubError(
                f"GitHub's API cannot be reached ({type(error).__name__}); the next tick tries again"
            ) from None
        with suppress(ValueError, TypeError):
            self._answered_at = parsedate_to_datetime(answer.headers.get("date", ""))
        if answer.status_code == 304:
            return Page(None, etag, is_new=False)
        now = self._answered_at.timestamp() if self._answered_at is not None else time.time()
        meaning = read_answer(answer.status_code, answer.headers, bytes(body), now)
        if isinstance(meaning, Limited):
            raise RateLimitError(meaning.reason, meaning.wait_s)
        if isinstance(meaning, Failed):
            raise GitHubError(
                f"GitHub answers to {method} {urlsplit(address).path} with {meaning.reason}{_advice(answer.status_code)}",
                answer.status_code,
            )
        return Page(_json(bytes(body)), answer.headers.get("etag"), answer.links.get("next", {}).get("url"))

    def _authorization(self) -> str | None:
        if not self._is_known:
            self._token, self._is_known = self._make_token(), True
        return self._token


def open_github(settings: GitHub, root: Path) -> GitHubRequests:
    """Make the client that the section `github` asks for; `root` is the folder of the configuration.

    Raises `ConfigError` where there is no token, or the App's key cannot be used.
    """
    if settings.app is None:
        token = os.environ.get(TOKEN, "").strip()
        if not token:
            raise ConfigError(f"${TOKEN} is not set: give it a token for {settings.repository}, or set github.app")
        OF_THIS_PROCESS.learn([token])
        return GitHubRequests(settings.api, lambda: token)
    return GitHubRequests(settings.api, _app_token(settings, root))


def _app_token(settings: GitHub, root: Path) -> Callable[[], str]:
    from accel_ci.github.app_tokens import AppTokens, private_key

    app = settings.app
    assert app is not None  # noqa: S101 - for mypy
    path = root / app.private_key_file
    try:
        key = private_key(path.read_text(), "github.app.private_key_file")
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"github.app.private_key_file: {path} cannot be read") from None

    async def fetch() -> str:
        tokens = AppTokens(settings.api, app.id, key, _TIMEOUT_S, app.installation)
        try:
            return await tokens.token(settings.repository, time.time())
        finally:
            await tokens.close()

    def token() -> str:
        try:
            return asyncio.run(fetch())
        except NoTokenError as error:
            if isinstance(error.answer, Limited):
                raise RateLimitError(error.answer.reason, error.answer.wait_s or SECONDARY_LIMIT_S) from None
            raise GitHubError(str(error)) from None
        except httpx.HTTPError as error:
            raise GitHubError(f"GitHub gave the App no token ({type(error).__name__}); the next tick tries again") from None

    return token


def _may_pass(error: BaseException) -> bool:
    """Return whether another try may succeed: GitHub was not reached, or had a fault."""
    return isinstance(error, GitHubError) and (error.status is None or error.status >= 500)


def _advice(status: int) -> str:
    return {
        401: f"; check ${TOKEN}, or github.app",
        403: "; the token has no right to it",
        404: "; check github.repository, and what the token may see",
    }.get(status, "")


def _json(content: bytes) -> Any:
    if not content:
        return {}
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise GitHubError("an answer of GitHub is no JSON; check github.api") from None
