"""Render the HUD's pages, each as one self-contained HTML file.

A page loads nothing: its style and script are inline, and its Content-Security-Policy allows only these two, by digest. The
pages on tests load data as scripts of the site's own folder (`data/`). They have a second policy, and a script must satisfy
both: from this site, be it a server's or a folder (of which `'self'` is not known to all browsers), and asked for by
the page's own script, so that markup which gets in loads nothing. Jinja2 escapes all text; the filters of the templates are
in `text.py`.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from accel_ci.hud import text
from accel_ci.hud.addresses import anchor, build_address, incident_address, test_address
from accel_ci.hud.grid import words_of
from accel_ci.model import VERDICTS

PAGES = {
    "index.html": "Builds",
    "pulls.html": "Pull requests",
    "incidents.html": "Incidents",
    "flaky.html": "Flaky tests",
    "cards.html": "Cards",
    "coverage.html": "Coverage",
    "speed.html": "Speed",
    "quality.html": "Quality",
    "search.html": "Search",
}
"""The pages that every other links to, with their names."""

LOADING = {"test.html": ("data.js", "test.js"), "search.html": ("data.js", "search.js")}
"""The pages that load data, with the parts of their script after the first."""

_SCRIPTS = {**LOADING, "index.html": ("grid.js",), "build.html": ("build.js",)}

_OWN_FOLDER = "'self' file:"
_OWN = "accel_ci.hud"


@dataclass(frozen=True)
class Site:
    """The facts that all pages show.

    `package` has the templates of the pages; they can extend those of the HUD. `links` are addresses of other sites by name.
    """

    project: str
    generated_at: datetime
    pages: dict[str, str] = field(default_factory=lambda: PAGES)
    package: str = _OWN
    links: dict[str, str] = field(default_factory=dict)


def render_page(name: str, site: Site, json: str | None = None, *, root: str = "", **values: Any) -> str:
    """Render a page by its template, which has `values`.

    `json` is the address of the same data, and `root` leads from the page's folder to that of the first page.
    """
    own_scripts = _SCRIPTS.get(name, ()) if site.package == _OWN else ()
    style, script = _asset("hud.css"), "".join(map(_asset, ("hud.js", *own_scripts)))
    scripts = f"'{_digest(script)}'"
    loading = name in LOADING
    policies = [
        f"default-src 'none'; style-src '{_digest(style)}'; script-src {scripts}{' ' + _OWN_FOLDER if loading else ''}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        *([f"script-src {scripts} 'strict-dynamic'"] if loading else []),
    ]
    shared = {"site": site, "this": name, "json": json, "root": root, "style": style, "script": script}
    return _environment(site.package).get_template(f"{name}.j2").render(**shared, policies=policies, **values)


@cache
def templates_stamp(package: str = _OWN) -> str:
    """A digest of all templates: a page that was rendered with others is out of date."""
    folders = [files(each) / "templates" for each in dict.fromkeys((_OWN, package))]
    every = (one for folder in folders for one in sorted(folder.iterdir(), key=lambda one: one.name))
    content = "".join(one.read_text(encoding="utf-8") for one in every)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@cache
def _asset(name: str) -> str:
    return (files(_OWN) / "templates" / name).read_text(encoding="utf-8")


@cache
def _environment(package: str) -> Environment:
    """All templates; each is compiled once, since that takes as long as gathering a page."""
    loader = ChoiceLoader([PackageLoader(each, "templates") for each in dict.fromkeys((package, _OWN))])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    filters = (
        text.duration, text.excerpt, text.first_line, text.number, text.one_line, text.percent, text.repository_name,
        text.quoted, text.size, text.utc, text.web_link, anchor,
    )  # fmt: skip
    environment.filters |= {function.__name__: function for function in filters}
    environment.globals |= {
        "test_address": test_address, "build_address": build_address, "incident_address": incident_address,
        "words_of": words_of, "verdicts": VERDICTS,
    }  # fmt: skip
    return environment


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
