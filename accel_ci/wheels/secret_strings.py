"""Strings in files that look like secrets: the patterns of well-known tokens from detect-secrets.

Only patterns of tokens with a form of their own are used, not entropy or key words, which would find every hash and every
example; and nothing is verified with the services that the tokens are for, so that none ever leaves this machine.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_PLUGINS = {
    "artifactory": "ArtifactoryDetector", "aws": "AWSKeyDetector", "azure_storage_key": "AzureStorageKeyDetector",
    "github_token": "GitHubTokenDetector", "gitlab_token": "GitLabTokenDetector", "jwt": "JwtTokenDetector",
    "npm": "NpmDetector", "openai": "OpenAIDetector", "pypi_token": "PypiTokenDetector", "sendgrid": "SendGridDetector",
    "slack": "SlackDetector", "square_oauth": "SquareOAuthDetector", "stripe": "StripeDetector",
}  # fmt: skip
_TEXT_ONLY = frozenset({"artifactory"})  # its patterns fit by chance to what a compiler writes
# The header alone is in every library that can read keys.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----\s+(?:[A-Za-z-]+: .*\s+)*[A-Za-z0-9+/=]{32}"
)
_PRINTABLE = re.compile(rb"[\t\n\r\x20-\x7e]{16,}")


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str], bool], ...]:
    """Name, pattern, and whether it is for text files alone."""
    from importlib import import_module

    found = [("Private Key", _PRIVATE_KEY, False)]
    for module, detector in _PLUGINS.items():
        plugin = getattr(import_module(f"detect_secrets.plugins.{module}"), detector)
        found += [(plugin.secret_type, pattern, module in _TEXT_ONLY) for pattern in plugin.denylist]
    return tuple(found)


def secrets_in(content: bytes) -> Iterator[str]:
    """What the content holds that looks like a secret: the kind of it, and how it begins, never all of it."""
    binary = b"\0" in content[:8192]
    text = b"\n\n".join(_PRINTABLE.findall(content)).decode("ascii") if binary else content.decode("utf-8", "replace")
    for kind, pattern, text_only in _patterns():
        if not (binary and text_only):
            for match in pattern.finditer(text):
                yield f"{kind}: {match.group().strip()[:6]}…"


def secrets_in_archive(archive: Path) -> list[str]:
    """What the files of a zip archive hold that looks like a secret, `file: kind: beginning`, each once."""
    findings: dict[str, None] = {}
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            findings |= {f"{entry.filename}: {finding}": None for finding in secrets_in(opened.read(entry))}
    return list(findings)
