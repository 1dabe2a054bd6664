"""The public keys of an issuer of OIDC tokens: fetched, cached, and replaced when the issuer replaces them.

Only keys for RS256 are kept. Verifying a token is in `identity`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from accel_ci.errors import AccelCiError
from accel_ci.relay.server.settings import Issuer, OidcSettings, is_safe
from accel_ci.relay.strict_json import JsonError, parse_object

SMALLEST_KEY = 2048
"""Bits of an RSA key, as RFC 7518 (section 3.3) demands."""

_LARGEST_ANSWER = 256 << 10
_DEPTH = 8
_LOG = logging.getLogger(__name__)


class NoKeysError(AccelCiError):
    """An issuer's keys cannot be had at present."""


class KeySet:
    """The keys of one issuer. The caller gives the time, in seconds of Unix time, and closes the client."""

    def __init__(self, issuer: Issuer, settings: OidcSettings, client: httpx.AsyncClient) -> None:
        """Fetch nothing yet."""
        self._issuer, self._settings, self._client = issuer, settings, client
        self._keys: dict[str, RSAPublicKey] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._failed = False
        self._lock = asyncio.Lock()

    async def find(self, key_id: str, now: float) -> RSAPublicKey | None:
        """Return a key; None where the issuer has none with this id. Raises `NoKeysError` where that cannot be known."""
        is_known = key_id in self._keys and _is_within(self._fetched_at, now, self._settings.stale_keys_s)
        # An issuer that is slow holds up one caller: for the others, the key is good until the answer is there.
        if not self._is_enough(key_id, now) and not (is_known and self._lock.locked()):
            async with self._lock:  # those that waited find what the first one has fetched
                if not self._is_enough(key_id, now) and not _is_within(self._tried_at, now, self._settings.cool_down_s):
                    await self._refresh(now)
        if not _is_within(self._fetched_at, now, self._settings.stale_keys_s):
            raise NoKeysError(f"the keys of {self._issuer.issuer} cannot be fetched; try again later")
        key = self._keys.get(key_id)
        if key is None and self._failed:
            raise NoKeysError(f"the new keys of {self._issuer.issuer} cannot be fetched; try again later")
        return key

    def _is_enough(self, key_id: str, now: float) -> bool:
        return key_id in self._keys and _is_within(self._fetched_at, now, self._settings.keys_s)

    async def _refresh(self, now: float) -> None:
        """Replace the keys; the old ones stay where that fails."""
        try:
            self._keys = await asyncio.wait_for(self._fetch(), self._settings.timeout_s)
            self._fetched_at, self._failed = now, False
        except (httpx.HTTPError, httpx.InvalidURL, NoKeysError, JsonError, TimeoutError, asyncio.TimeoutError) as error:
            self._failed = True
            _LOG.warning("the keys of %s were not fetched: %s: %s", self._issuer.issuer, type(error).__name__, error)
        self._tried_at = now

    async def _fetch(self) -> dict[str, RSAPublicKey]:
        url = self._issuer.jwks_url or await self._discover()
        keys = _usable((await self._get(url)).get("keys"))
        if not keys:
            raise NoKeysError("there is no key for RS256 at its address")
        return keys

    async def _discover(self) -> str:
        """Return the address of the keys, by OpenID Connect Discovery 1.0, section 4."""
        document = await self._get(f"{self._issuer.issuer.rstrip('/')}/.well-known/openid-configuration")
        if document.get("issuer") != self._issuer.issuer:
            raise NoKeysError("its configuration is that of another issuer")
        url = document.get("jwks_uri")
        if not isinstance(url, str) or not is_safe(url):
            raise NoKeysError("its configuration names no address of keys that begins with https://")
        return url

    async def _get(self, url: str) -> dict[str, Any]:
        async with self._client.stream("GET", url) as response:
            if response.status_code != 200:  # redirects, too: they could lead out of https
                raise NoKeysError(f"HTTP {response.status_code}")
            content = b""
            async for part in response.aiter_raw():
                content += part
                if len(content) > _LARGEST_ANSWER:
                    raise NoKeysError("its answer is too large")
        return parse_object(content, _DEPTH)


def _is_within(earlier: float | None, now: float, seconds: float) -> bool:
    """Return whether so much time has not passed yet. A time that is still to come is out, after a clock was set back."""
    return earlier is not None and 0 <= now - earlier < seconds


def _usable(entries: object) -> dict[str, RSAPublicKey]:
    """Return the public RSA keys for signatures, by their id. All else in a key set is left out."""
    found: dict[str, RSAPublicKey] = {}
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or entry.get("kty") != "RSA":
            continue
        key_id = entry.get("kid")
        if not isinstance(key_id, str) or entry.get("use", "sig") != "sig" or entry.get("alg", "RS256") != "RS256":
            continue
        try:
            key = PyJWK(entry, "RS256").key
        except PyJWTError:
            continue
        if isinstance(key, RSAPublicKey) and key.key_size >= SMALLEST_KEY:
            found.setdefault(key_id, key)
    return found
