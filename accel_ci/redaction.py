"""The one redactor: what must not be seen is taken out of every text on its way out of this process.

Every sink calls it: manifests, metadata, the event log, the HUD, the console, scripts, and what other programs print. Which
values are secrets on this machine is the question of `accel_ci.secrets`; here they are taken out in all the forms in which
programs write them. Nothing is ever put back: code that needs a credential takes it from where it was configured.
"""

from __future__ import annotations

import base64
import html
import io
import json
import logging
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO
from urllib.parse import quote, quote_plus, unquote

MASK = "***"
SHORTEST = 6
"""Characters of the shortest secret that is taken out: shorter ones are parts of ordinary words and numbers."""

_TELLS = "::add-mask::"
_TOLD = re.compile(rf"{_TELLS}(\S{{{SHORTEST},}})")
"""uv prints this before it uses a token of trusted publishing that it was given, so that logs of jobs do not show it."""

_USER_INFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^/\s]+)@")
_NO_SECRETS = frozenset({
    "__token__", "git", "oauth2", "ssh", "token", "user", "x-access-token", "x-oauth-basic", "x-token-auth",
})  # fmt: skip
"""User names that services prescribe."""


class Redactor:
    """Takes secrets out of texts: as they are, and as JSON, URLs, HTML, Python and base64 write them."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._bytes: re.Pattern[bytes] | None = None
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Take these out, too. Those that are too short are left alone."""
        self._take_out(self._secrets | {part for secret in secrets for part in _parts(secret) if len(part) >= SHORTEST})

    def forget(self, secrets: Iterable[str]) -> None:
        """Take these out no more: they are good for nothing now, and a long process would learn ever more."""
        self._take_out(self._secrets - {part for secret in secrets for part in _parts(secret)})

    def _take_out(self, new: frozenset[str]) -> None:
        if new == self._secrets:
            return
        self._secrets = new
        if not new:
            self._pattern = self._bytes = None
            return
        forms = sorted({form for secret in new for form in _forms(secret)}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, forms)))
        encoded = sorted({form.encode("utf-8", "surrogatepass") for form in forms}, key=len, reverse=True)
        self._bytes = re.compile(b"|".join(map(re.escape, encoded)))

    @property
    def secrets(self) -> frozenset[str]:
        """The secrets that it takes out."""
        return self._secrets

    @property
    def pattern(self) -> str | None:
        """A regular expression that matches every form of every secret; None where there are none."""
        return None if self._pattern is None else self._pattern.pattern

    def text(self, text: str) -> str:
        """Replace every secret by `***`, and what a program tells GitHub Actions to mask."""
        for told in set(_TOLD.findall(text)) if _TELLS in text else ():
            text = text.replace(told, MASK)
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def content(self, content: bytes) -> bytes:
        """Replace every secret in UTF-8 by `***`."""
        return content if self._bytes is None else self._bytes.sub(MASK.encode(), content)


OF_THIS_PROCESS = Redactor()
"""Knows what this process has learned; `accel_ci.secrets` finds it."""


def redact(text: str) -> str:
    """Take out the secrets that this process knows."""
    return OF_THIS_PROCESS.text(text)


def redact_bytes(content: bytes) -> bytes:
    """Take out the secrets that this process knows from UTF-8."""
    return OF_THIS_PROCESS.content(content)


def without_credentials(text: str) -> str:
    """Remove user names and passwords from the URLs in a text; the user name of ssh stays, which is no secret."""

    def clean(match: re.Match[str]) -> str:
        user, colon, _ = match[2].partition(":")
        return f"{match[1]}{user}@" if "ssh" in match[1] and not colon else match[1]

    return _USER_INFO.sub(clean, text)


def credentials_in(text: str) -> set[str]:
    """Find the user names and passwords in the URLs of a text, as they are and decoded."""
    found = set()
    for match in _USER_INFO.finditer(text):
        user, colon, password = match[2].partition(":")
        if colon:
            found |= {password, f"{user}:{password}"}
        if user not in _NO_SECRETS and (not password or password in _NO_SECRETS):
            found |= set() if "ssh" in match[1] else {user}
    return {form for each in found for form in (each, unquote(each))} - _NO_SECRETS


class RedactedStream(io.TextIOBase):
    """A text stream that writes to another one, without secrets."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text without its secrets."""
        self._stream.write(redact(text))
        return len(text)

    def __getattribute__(self, name: str) -> Any:
        own = name in ("write", "writelines", "_stream") or name.startswith("__")
        return object.__getattribute__(self, name) if own else getattr(self._stream, name)


def redact_console() -> None:
    """Have standard output, standard error and all log records of this process redacted."""
    for name in ("stdout", "stderr"):
        if not isinstance(stream := getattr(sys, name), RedactedStream):
            setattr(sys, name, RedactedStream(stream))
    redact_records()


def redact_records() -> None:
    """Have all log records of this process redacted, whoever handles them."""
    make = logging.getLogRecordFactory()
    if getattr(make, "redacts", False):
        return

    def make_redacted(*arguments: Any, **options: Any) -> logging.LogRecord:
        record = make(*arguments, **options)
        if isinstance(record.msg, str) and (text := record.getMessage()) != (clean := redact(text)):
            record.msg, record.args = clean, None
        return record

    make_redacted.redacts = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_redacted)


def _parts(secret: str) -> Iterable[str]:
    """A secret of several lines, such as a key, may be shown in part."""
    lines = [line.strip() for line in secret.splitlines()]
    return (secret.strip(), *(line for line in lines if len(line) >= 4 * SHORTEST)) if len(lines) > 1 else (secret,)


def _forms(secret: str) -> set[str]:
    """The ways in which programs write a secret."""
    plain = json.dumps(secret, ensure_ascii=False)[1:-1]
    for_web = plain
    for letter in "<>&='":  # Bazel's and Jinja's JSON writers also escape HTML's special characters
        for_web = for_web.replace(letter, f"\\u{ord(letter):04x}")
    plain_forms = {
        secret, plain, for_web, json.dumps(secret)[1:-1], repr(secret)[1:-1],
        html.escape(secret), html.escape(secret).replace("&#x27;", "&#39;"),
        quote(secret), quote(secret, safe=""), quote_plus(secret),
    }  # fmt: skip
    return plain_forms | _in_base64(secret.encode("utf-8", "surrogatepass"))


def _in_base64(secret: bytes) -> set[str]:
    """The letters that a secret alone decides in base64, at each of the three places where it may begin."""
    forms = set()
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + secret)
        core = encoded[-(-before * 8 // 6) : (before + len(secret)) * 8 // 6].decode()
        forms |= {core, core.replace("+", "-").replace("/", "_")}
    return forms
