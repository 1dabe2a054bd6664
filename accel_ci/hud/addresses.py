"""The addresses of what pages of the HUD link to. The scripts of the pages make the same ones (`templates/data.js`)."""

from __future__ import annotations

import re
from urllib.parse import quote

from accel_ci.model import Build

_UNCHANGED = "/:@!$'()*,;=+"
"""Characters that a fragment may have as they are; the rest is percent-encoded."""


def anchor(name: str) -> str:
    """A name as a part of an address: what a file name or an id may not have becomes `-`."""
    return re.sub(r"[^A-Za-z0-9._~-]", "-", name)


def build_address(build: Build) -> str:
    """The address of a build's page."""
    return f"builds/{anchor(build.name)}.html"


def incident_address(incident: str) -> str:
    """The address of an incident."""
    return f"incidents.html#i-{incident}"


def test_address(suite: str, test: str) -> str:
    """The address of a test's page."""
    return f"test.html#{quote(suite, safe='')}/{quote(test, safe=_UNCHANGED, errors='replace')}"


test_address.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it for its name
