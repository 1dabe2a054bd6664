"""No page of the HUD has anything that axe-core knows to keep people out: those who see little, or use no mouse.

`ACCEL_CI_CHROMIUM` names the browser.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, expect

from accel_ci.hud.addresses import test_address
from accel_ci.hud.site import write_site
from accel_ci_tests.fixtures.browser import barriers, open_page
from accel_ci_tests.hud.samples import HOSTILE, NOW, VARIANTS, flakiness, workspace_of

LOADED = {"test.html": "#test h1, #test h2", "search.html": "#results li"}
"""Elements that a page has once its data are loaded."""


@pytest.fixture(scope="module")
def folder(history: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the samples."""
    return write_site(workspace_of(history), flakiness(), tmp_path_factory.mktemp("site"), now=NOW).parent


def addresses(folder: Path) -> list[str]:
    """All pages of a site, and a build of each state; those that load data are asked for some."""
    asked = {"test.html": test_address("integration", HOSTILE), "search.html": "search.html?q=conv2d"}
    builds = [f"builds/nightly-202611{day}~{VARIANTS[n]}.html" for day, n in ((27, 0), (27, 1), (25, 1), (24, 0), (23, 0))]
    names = [*sorted(path.name for path in folder.glob("*.html")), *builds]
    return [asked.get(name, name) for name in names]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_nothing_on_any_page_is_a_barrier(
    browser: Browser, folder: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    found = []
    for address in addresses(folder):
        page, _ = open_page(browser, f"{folder.as_uri()}/{address}", width, scheme)
        if loaded := LOADED.get(Path(page.url.partition("#")[0].partition("?")[0]).name):
            expect(page.locator(loaded).first).to_be_visible()
        page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
        found += [f"{address}: {barrier}" for barrier in barriers(page)]
        page.context.close()
    assert not found, "\n".join(found)


def test_a_barrier_is_found(browser: Browser, folder: Path) -> None:
    page, _ = open_page(browser, f"{folder.as_uri()}/cards.html")
    page.evaluate("document.querySelector('main').append(document.createElement('button'))")
    [line] = barriers(page)
    assert line.startswith("button-name: ")


def test_a_site_without_builds_has_no_barrier(browser: Browser, tmp_path: Path) -> None:
    folder = write_site(workspace_of(tmp_path), flakiness(), tmp_path / "site", now=NOW).parent
    found = []
    for path in sorted(folder.rglob("*.html")):
        page, _ = open_page(browser, path.as_uri())
        found += [f"{path.name}: {barrier}" for barrier in barriers(page)]
        page.context.close()
    assert not found, "\n".join(found)
