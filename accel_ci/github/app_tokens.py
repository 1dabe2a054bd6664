"""The tokens of a GitHub App: one for each account that has installed it, renewed before it ends.

A token is good for the repositories of one installation, so a dispatch goes with that of the downstream's owner, and a check
run with that of the upstream's. The meaning of GitHub's answers is in `answers`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx
import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from accel_ci.errors import ConfigError
from accel_ci.github.answers import HEADERS, Failed, Sent, read_answer, read_start
from accel_ci.github.authorization import NoTokenError
from accel_ci.redaction import OF_THIS_PROCESS

RENEWED_BEFORE_S = 300.0
"""A token is used no more so long before its end; GitHub's tokens last for an hour."""

_LIFETIME_S = 540
_EARLIER_S = 60
"""The token of the App itself: GitHub takes at most 10 minutes, and asks for a begin 60 s ago, since clocks differ."""

_LARGEST_ANSWER = 64 << 10
_TOKEN = re.compile(r"[A-Za-z0-9_.-]+")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Token:
    value: str
    ends_at: float


class AppTokens:
    """Makes and keeps the tokens of installations, by the owner of a repository."""

    def __init__(self, api: str, app: str, key: RSAPrivateKey, timeout_s: float, installation: int | None = None) -> None:
        """Fetch nothing yet. `app` is the App's id or client id. With `installation`, this one is used for all owners."""
        self._app, self._key, self._installation = app, key, installation
        self._client = httpx.AsyncClient(base_url=api, headers=HEADERS, timeout=timeout_s)
        self._installations: dict[str, int] = {}
        self._tokens: dict[str, _Token] = {}
        self._learnt: list[_Token] = []
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def token(self, repository: str, now: float) -> str:
        """Return a token for a repository. Raises `NoTokenError` and `httpx.HTTPError`."""
        owner = self._owner(repository)
        async with self._locks[owner]:  # those that waited find what the first one has fetched
            kept = self._tokens.get(owner)
            if kept is None or kept.ends_at - RENEWED_BEFORE_S <= now:
                kept = self._tokens[owner] = await self._fetch(owner, repository, now)
            return kept.value

    def drop(self, repository: str, token: str) -> bool:
        """Use a token no more that GitHub has refused. Return True: another one may be good."""
        owner = self._owner(repository)
        kept = self._tokens.get(owner)
        if kept is not None and kept.value == token:
            del self._tokens[owner]
        return True

    def _owner(self, repository: str) -> str:
        """Return the key of an installation: an App has at most one for each owner."""
        return "" if self._installation is not None else repository.partition("/")[0].lower()

    async def _fetch(self, owner: str, repository: str, now: float) -> _Token:
        installation = self._installation or self._installations.get(owner)
        if installation is None:
            found = await self._request("GET", f"/repos/{repository}/installation", now)
            installation = found.get("id")
            if not isinstance(installation, int):
                raise NoTokenError(Failed("GitHub's answer has no installation of the App"))
            self._installations[owner] = installation
        try:
            made = await self._request("POST", f"/app/installations/{installation}/access_tokens", now)
        except NoTokenError:
            self._installations.pop(owner, None)  # it may have been removed, and made anew with another id
            raise
        try:
            value, end = made["token"], datetime.fromisoformat(made["expires_at"].replace("Z", "+00:00"))
            if not _TOKEN.fullmatch(value):
                raise ValueError
            token = _Token(value, end.timestamp())
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise NoTokenError(Failed("GitHub's answer has no token of the App's installation")) from None
        self._learn(token, now)
        _LOG.info("the GitHub App has a new token for %s", owner or "its installation")
        return token

    async def _request(self, method: str, path: str, now: float) -> dict[str, Any]:
        """Ask as the App itself."""
        claims = {"iss": self._app, "iat": int(now) - _EARLIER_S, "exp": int(now) + _LIFETIME_S}
        authorization = {"Authorization": f"Bearer {jwt.encode(claims, self._key, 'RS256')}"}
        async with self._client.stream(method, path, headers=authorization) as response:
            content = await read_start(response, _LARGEST_ANSWER)
        answer = read_answer(response.status_code, response.headers, content, now)
        if isinstance(answer, Failed):
            advice = {
                401: "check github.app.id, its private key, and the clock",
                404: "install it for this repository",
            }.get(response.status_code, "")
            # Not permanent, unless the repository was renamed: an App can be installed, and its key corrected.
            reason = f"the GitHub App has no token, {answer.reason}{f'; {advice}' if advice else ''}"
            raise NoTokenError(Failed(reason, response.is_redirect, answer.wait_s))
        if not isinstance(answer, Sent):
            raise NoTokenError(answer)
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            value = None
        return value if isinstance(value, dict) else {}

    def _learn(self, token: _Token, now: float) -> None:
        """Have the token redacted until it has ended: in a year, there are thousands."""
        ended = [one for one in self._learnt if one.ends_at + RENEWED_BEFORE_S < now]
        OF_THIS_PROCESS.forget({one.value for one in ended})
        OF_THIS_PROCESS.learn({token.value})
        self._learnt = [*(one for one in self._learnt if one not in ended), token]


def private_key(text: str, setting: str) -> RSAPrivateKey:
    """Read the key of an App. Raises `ConfigError`, which names the setting, where it cannot be used."""
    try:
        key = load_pem_private_key(text.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise ConfigError(f"{setting}: must be the RSA key in PEM that GitHub gave for the App, without a password")
    return key
