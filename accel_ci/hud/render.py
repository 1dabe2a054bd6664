"""Render the HUD's pages, each as one self-contained HTML file.

A page loads nothing: its style and script are inline, and its Content-Security-Policy allows only these two, by digest.
Jinja2 escapes all text; the filters of the templates are in `text.py`.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from accel_ci.hud import text
from accel_ci.hud.page import HudPage
from accel_ci.model import VERDICTS

PAGES = {
    "index.html": "Builds",
    "incidents.html": "Incidents",
    "flaky.html": "Flaky tests",
    "cards.html": "Cards",
    "coverage.html": "Coverage",
    "speed.html": "Speed",
    "quality.html": "Quality",
}
"""The pages that every other links to, with their names."""


@dataclass(frozen=True)
class Site:
    """The facts that all pages show."""

    project: str
    generated_at: datetime
    pages: dict[str, str] = field(default_factory=lambda: PAGES)


def render_hud(page: HudPage) -> str:
    """Render the page of all builds as HTML."""
    return render_page("index.html", Site(page.project, page.generated_at), page=page, verdicts=VERDICTS)


def render_page(name: str, site: Site, json: str | None = None, **values: Any) -> str:
    """Render a page by its template, which has `values`; `json` is the address of the same data."""
    style, script = _assets()
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    shared = {"site": site, "this": name, "json": json, "style": style, "script": script, "policy": policy}
    return _template(f"{name}.j2").render(**shared, **values)


def _assets() -> tuple[str, ...]:
    templates = files("accel_ci.hud") / "templates"
    return tuple((templates / name).read_text(encoding="utf-8") for name in ("hud.css", "hud.js"))


@cache
def _template(name: str) -> Template:
    """A page's template; compiled once, since that takes as long as gathering a page."""
    loader = PackageLoader("accel_ci.hud", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    filters = (
        text.duration, text.excerpt, text.first_line, text.number, text.one_line, text.percent, text.repository_name,
        text.size, text.utc, text.web_link,
    )  # fmt: skip
    environment.filters |= {function.__name__: function for function in filters}
    return environment.get_template(name)


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
