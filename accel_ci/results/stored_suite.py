"""A stored suite of a build: its name in the store, and what it means that it was replaced."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from urllib.parse import quote, unquote

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from accel_ci.errors import AccelCiError
from accel_ci.model import Build
from accel_ci.storage.object_store import Entry

TRIES = 8
ROLLUPS = "rollups"


@dataclass(frozen=True)
class StoredSuite:
    """The attempts of one suite of a build, as they are stored."""

    day: date
    build: Build
    suite: str
    entry: Entry

    @property
    def rollup_name(self) -> str:
        """The name of its rollup."""
        return f"{ROLLUPS}/{self.entry.name.removesuffix('.parquet')}.arrow"


class AttemptsReplacedError(AccelCiError):
    """Attempts were stored again while they, or what was made of them, were read."""

    def __init__(self, stored: StoredSuite) -> None:
        super().__init__(f"{stored.entry.name} in the results store was replaced while it was read; ask again")


ask_again = retry(retry=retry_if_exception_type(AttemptsReplacedError), stop=stop_after_attempt(TRIES), reraise=True)
"""A decorator that asks anew when attempts are replaced meanwhile, as those of a running build are, stage by stage."""


def encoded(text: str) -> str:
    """A part of a file name: special characters are percent-encoded, and so is the sign that joins the parts."""
    return quote(text, safe="").replace("~", "%7E")


def parse_entry(entry: Entry) -> StoredSuite | None:
    """The stored suite that a file's name stands for; None for other files."""
    match = re.fullmatch(r"day=(\d{4}-\d\d-\d\d)/([^~/]+)~([^~/]+)~([^~/]+)\.parquet", entry.name)
    if match is None:
        return None
    with suppress(ValueError):
        revision, variant, suite = map(unquote, match.groups()[1:])
        return StoredSuite(date.fromisoformat(match[1]), Build(revision, variant), suite, entry)
    return None
