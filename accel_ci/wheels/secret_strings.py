"""Find strings in files that look like secrets, by detect-secrets' patterns of well-known tokens.

Only tokens with a distinctive form are searched for: entropy and key words would match every hash and every example. Tokens
are not verified with their services, so that none leaves this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module

_PLUGINS = {
    "artifactory": "ArtifactoryDetector", "aws": "AWSKeyDetector", "azure_storage_key": "AzureStorageKeyDetector",
    "github_token": "GitHubTokenDetector", "gitlab_token": "GitLabTokenDetector", "jwt": "JwtTokenDetector",
    "npm": "NpmDetector", "openai": "OpenAIDetector", "pypi_token": "PypiTokenDetector", "sendgrid": "SendGridDetector",
    "slack": "SlackDetector", "square_oauth": "SquareOAuthDetector", "stripe": "StripeDetector",
}  # fmt: skip
_TEXT_ONLY = frozenset({"artifactory"})  # its patterns match compiled code by chance
# With the beginning of the key: the header alone is in every library that can read keys.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----\s+(?:[A-Za-z-]+: .*\s+)*[A-Za-z0-9+/=]{32}"
)
_LONGEST = 4096  # bytes of a secret that two pieces share
_PRINTABLE = re.compile(rb"[\t\n\r\x20-\x7e]{16,}")


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str], bool], ...]:
    """The name of each kind, its pattern, and whether it applies to text files only."""
    found = [("Private Key", _PRIVATE_KEY, False)]
    for module, detector in _PLUGINS.items():
        plugin = getattr(import_module(f"detect_secrets.plugins.{module}"), detector)
        found += [(plugin.secret_type, pattern, module in _TEXT_ONLY) for pattern in plugin.denylist]
    return tuple(found)


def secrets_in(chunks: Iterable[bytes]) -> Iterator[str]:
    """Find what looks like a secret in a file's pieces: its kind and its beginning, never the whole of it."""
    binary: bool | None = None
    rest = b""
    for chunk in chunks:
        content = rest + chunk
        if binary is None:
            binary = b"\0" in content[:8192]
        yield from _secrets_in(content, binary)
        rest = content[-_LONGEST:]


def _secrets_in(content: bytes, binary: bool) -> Iterator[str]:
    text = b"\n\n".join(_PRINTABLE.findall(content)).decode("ascii") if binary else content.decode("utf-8", "replace")
    for kind, pattern, text_only in _patterns():
        if not (binary and text_only):
            for match in pattern.finditer(text):
                yield f"{kind}: {match.group().strip()[:6]}…"
