"""The caller of a callback: the repository whose CI has an OIDC token.

The checks of the token belong here. What the repository may do is decided by the allowlist and by the states of its jobs.

A token may be used again while it lasts: a job sends all its callbacks with one, as for the public relay. It speaks for one
repository alone, and a callback that is sent again changes nothing, so there is no list of used tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import jwt
from jwt.exceptions import PyJWTError
from jwt.utils import base64url_decode

from accel_ci.errors import AccelCiError
from accel_ci.relay.messages import AUDIENCE
from accel_ci.relay.server.key_sets import KeySet, NoKeysError
from accel_ci.relay.server.settings import Issuer, OidcSettings
from accel_ci.relay.strict_json import JsonError, parse_object

ALGORITHM = "RS256"
"""The only one that is taken, as in the public relay: the token has no choice."""

LARGEST_TOKEN = 16 << 10
"""Characters; GitHub's have about 2,000."""

_HEADER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +((?:[A-Za-z0-9_-]+\.){2}[A-Za-z0-9_-]+)")
_REPOSITORY = re.compile(r"[A-Za-z0-9_-]{1,39}/[A-Za-z0-9._-]{1,100}")
_DEPTH = 8
_LATEST = 1e12
"""No time is later; a number of 400 digits is no float."""


class NotIdentified(AccelCiError):
    """Nobody, or nobody who may call. `detail` is safe to show: nothing of the token is in it.

    `status` is that of the answer: 401 for a token that is missing or not good, 403 for a good one that stands for no
    repository, 503 while the issuer's keys cannot be had.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class Identities:
    """Identifies callers by the tokens of the issuers that are trusted."""

    def __init__(self, issuers: Sequence[Issuer], settings: OidcSettings) -> None:
        """Fetch nothing yet. `close` closes the connections."""
        self._leeway_s = settings.leeway_s
        self._client = httpx.AsyncClient(
            headers={"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "accel-ci-relay"},
            timeout=settings.timeout_s,
            follow_redirects=False,
        )
        self._issuers = {one.issuer: (one, KeySet(one, settings, self._client)) for one in issuers}

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def identify(self, authorization: str | None, now: float) -> str:
        """Return the repository, `owner/name`, that a header `Authorization` stands for. Raises `NotIdentified`.

        `now` is the time in seconds of Unix time.
        """
        token = _token(authorization)
        header, claims = _unverified(token)
        if header.get("alg") != ALGORITHM or not isinstance(header.get("kid"), str) or "crit" in header:
            raise NotIdentified(401, f"the token must be signed with {ALGORITHM}, by a key that its 'kid' names")
        name = claims.get("iss")
        issuer, keys = self._issuers.get(name, (None, None)) if isinstance(name, str) else (None, None)
        if issuer is None or keys is None:
            raise NotIdentified(401, "the token is of no issuer that is trusted here")
        try:
            key = await keys.find(header["kid"], now)
        except NoKeysError as error:
            raise NotIdentified(503, str(error)) from None
        if key is None:
            raise NotIdentified(401, "the token is signed with a key that its issuer does not have")
        try:
            # The times are checked below, by the same clock as everything else of the callback. A token for several
            # audiences is refused: each of them could use it here.
            claims = jwt.decode(
                token,
                key,
                [ALGORITHM],
                audience=AUDIENCE,
                issuer=issuer.issuer,
                options={"strict_aud": True, "verify_exp": False, "verify_nbf": False, "verify_iat": False},
            )
        except PyJWTError as error:
            # Only its kind: the messages of some hold parts of the token.
            raise NotIdentified(401, f"the token is not good: {type(error).__name__}") from None
        _check_times(claims, now, self._leeway_s)
        return _repository(claims, issuer)


def _token(authorization: str | None) -> str:
    if not authorization:
        raise NotIdentified(401, "Authorization is missing: send 'Bearer' and an OIDC token")
    if len(authorization) > LARGEST_TOKEN:
        raise NotIdentified(401, f"Authorization has more than {LARGEST_TOKEN} characters")
    found = _HEADER.fullmatch(authorization)
    if found is None:
        raise NotIdentified(401, "Authorization must be 'Bearer' and an OIDC token")
    return found[1]


def _unverified(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the claims. Nothing of them is proven, except that they have one meaning only."""
    header, claims, _ = token.split(".")
    try:
        return parse_object(base64url_decode(header), _DEPTH), parse_object(base64url_decode(claims), _DEPTH)
    except JsonError as error:
        raise NotIdentified(401, f"the token is no JWT: {error}") from None
    except ValueError:
        raise NotIdentified(401, "the token is no JWT: a part of it is not base64") from None


def _check_times(claims: Mapping[str, Any], now: float, leeway_s: float) -> None:
    """Refuse a token that has ended, or has not begun (RFC 7519, sections 4.1.4 to 4.1.6)."""
    for name in ("exp", "iat", "nbf"):
        value = claims.get(name)
        if value is None and name == "nbf":
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LATEST:
            raise NotIdentified(401, f"the token's '{name}' must be a time")
        if name == "exp" and value <= now - leeway_s:
            raise NotIdentified(401, "the token has expired; ask the CI for a new one")
        if name != "exp" and value > now + leeway_s:
            raise NotIdentified(401, f"the token is not good yet by its '{name}'; is a clock wrong?")


def _repository(claims: Mapping[str, Any], issuer: Issuer) -> str:
    if issuer.identity == "repository":
        value = claims.get("repository")
        if not isinstance(value, str) or not _REPOSITORY.fullmatch(value):
            raise NotIdentified(403, "the token has no claim 'repository' with owner/name")
        return value
    parts = [claims.get(name) for name in ("organization_id", "pipeline_id")]
    if not all(isinstance(part, str) and part for part in parts):
        raise NotIdentified(403, "the token lacks 'organization_id' or 'pipeline_id': ask for it with --claim of both")
    found = issuer.pipelines.get("/".join(map(str, parts)))
    if found is None:
        raise NotIdentified(403, "the pipeline stands for no repository: name it in 'pipelines' of the relay's issuers")
    return found
