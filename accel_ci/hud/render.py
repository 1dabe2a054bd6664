"""Render a `HudPage` as one self-contained HTML file.

The page loads nothing: its style and script are inline, and its Content-Security-Policy allows only these two, by digest.
Jinja2 escapes all text; the filters of the template are in `text.py`.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from accel_ci.hud import text
from accel_ci.hud.page import HudPage
from accel_ci.model import VERDICTS
from accel_ci.redaction import redact
from accel_ci.storage.atomic_file import write_whole_file


def render_hud(page: HudPage) -> str:
    """Render the page as HTML."""
    templates = files("accel_ci.hud") / "templates"
    style, script = ((templates / name).read_text(encoding="utf-8") for name in ("hud.css", "hud.js"))
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return _template().render(page=page, verdicts=VERDICTS, style=style, script=script, policy=policy)


@cache
def _template() -> Template:
    """The page's template; compiled once, since that takes as long as gathering the page."""
    loader = PackageLoader("accel_ci.hud", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    filters = (
        text.duration, text.excerpt, text.first_line, text.number, text.one_line, text.percent, text.repository_name,
        text.size, text.utc, text.web_link,
    )  # fmt: skip
    environment.filters |= {function.__name__: function for function in filters}
    return environment.get_template("index.html.j2")


def write_hud(page: HudPage, folder: Path) -> Path:
    """Write `index.html` to `folder` atomically and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "index.html"
    write_whole_file(file, redact(render_hud(page)).encode(errors="backslashreplace"))
    return file


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
