"""The page in a real browser: hostile text stays text, nothing is fetched, and it can be read.

`ACCEL_CI_CHROMIUM` names the browser; `ACCEL_CI_SCREENSHOTS` a folder to leave pictures of the page in.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser

from accel_ci.hud.render import PAGES
from accel_ci.hud.site import write_site
from accel_ci.hud.text import visible
from accel_ci.model import Build
from accel_ci_tests.fixtures.browser import LOW_CONTRAST, open_page
from accel_ci_tests.hud.samples import (
    HOSTILE,
    HOSTILE_MESSAGE,
    NOW,
    VARIANTS,
    flakiness,
    lay_build,
    lay_revision,
    workspace_of,
)


def site_of(home: Path, project: str, folder: Path) -> str:
    return write_site(workspace_of(home, project), flakiness(), folder, now=NOW).as_uri()


@pytest.fixture
def site(home: Path, tmp_path: Path) -> str:
    return site_of(home, "torch_emu <b>&", tmp_path / "site")


def test_hostile_text_is_shown_and_never_run(browser: Browser, site: str) -> None:
    page, wrong = open_page(browser, site)
    page.get_by_role("button", name="Open all").first.click()
    body = page.inner_text("body")
    assert "test_<script>document.title='owned'</script>\"'[[U+202E]gnp.exe[U+001B][31m[U+0000]]" in body
    assert visible(HOSTILE_MESSAGE) in body
    assert page.title() == "Builds · torch_emu <b>&"
    assert page.locator("script").count() == 1
    assert page.locator("img, b:has-text('&')").count() == 0
    assert wrong == []


def test_the_policy_stops_a_script_that_gets_in(browser: Browser, site: str) -> None:
    page, wrong = open_page(browser, site)
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'document.title = 2'}))")
    page.wait_for_timeout(100)
    assert page.title() == "Builds · torch_emu <b>&"
    assert any("Content Security Policy" in line for line in wrong)


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(browser: Browser, site: str, width: int, scheme: Literal["light", "dark"]) -> None:
    page, wrong = open_page(browser, site, width, scheme)
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(LOW_CONTRAST) == []
    assert wrong == []
    if folder := os.environ.get("ACCEL_CI_SCREENSHOTS"):
        page.reload()
        page.screenshot(path=f"{folder}/hud-{scheme}-{width}.png", full_page=True)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", [name for name in PAGES if name not in ("index.html", "search.html")])
def test_every_page_fits_can_be_read_and_runs_no_hostile_text(
    browser: Browser, site: str, name: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    page, wrong = open_page(browser, site.replace("index.html", name), width, scheme)
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(LOW_CONTRAST) == []
    if name != "speed.html":  # it has no text of others
        assert visible(HOSTILE).partition("::")[2] in page.inner_text("main")
    assert page.locator("main script, main b:has-text('host0'), main u, main a[href^='javascript']").count() == 0
    assert page.locator("nav a[aria-current]").inner_text() == PAGES[name]
    assert wrong == []
    if folder := os.environ.get("ACCEL_CI_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name.removesuffix('.html')}-{scheme}-{width}.png", full_page=True)


def test_the_pages_lead_to_each_other_by_keyboard(browser: Browser, site: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(site)
    for name in [*list(PAGES)[1:], "index.html"]:
        page.locator(f"nav a[href='{name}']").focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/{name}")


def test_everything_is_there_without_scripts(browser: Browser, site: str) -> None:
    page, _ = open_page(browser, site, script=False)
    assert page.locator(".item summary").count() > 12
    assert page.get_by_role("searchbox").count() == 0
    page.locator("a.cell").first.click()
    assert "#build-nightly-20261127" in page.url
    page.locator(".item summary").first.click()
    assert page.locator(".item pre").first.is_visible()


def test_the_filter_hides_what_does_not_match(browser: Browser, site: str) -> None:
    page, _ = open_page(browser, site)
    page.get_by_role("searchbox", name="Filter failures").fill("GNP.exe")
    assert page.locator("[data-filter=failures] .item:visible").count() == 1


@pytest.mark.parametrize("script", [True, False])
def test_the_grid_shows_one_trigger_or_all(browser: Browser, home: Path, tmp_path: Path, script: bool) -> None:
    commit = lay_revision(home, 0, trigger="main", key="main-0123456789ab", hours=0)
    lay_build(home, Build(commit.key, VARIANTS[0]), {"passed": 32})
    page, wrong = open_page(browser, site_of(home, "torch_emu", tmp_path / "site"), script=script)
    rows = page.locator(".grid tbody tr:visible")
    assert rows.count() == 8
    page.get_by_label("main").check()
    assert [text.split()[0] for text in rows.all_inner_texts()] == [commit.key]
    page.get_by_label("all").check()
    assert rows.count() == 9
    assert wrong == []


def test_every_row_opens_its_build(browser: Browser, site: str) -> None:
    page, _ = open_page(browser, site, script=False)
    cells = page.locator("a.cell")
    assert cells.count() == 15
    for number in range(cells.count()):
        cell = cells.nth(number)
        cell.click()
        section = page.locator(str(cell.get_attribute("href")).replace("~", "\\~").replace(".", "\\."))
        assert section.is_visible()
        assert section.locator("h2 .state").inner_text() == cell.locator(".state").inner_text()


def test_ages_are_those_of_the_moment_of_reading(browser: Browser, site: str) -> None:
    plain, _ = open_page(browser, site, script=False)
    stopped = ".states time"
    assert plain.locator(stopped).inner_text() == "2026-11-27 07:00 UTC"
    context = browser.new_context()
    page = context.new_page()
    page.clock.install(time=NOW)
    page.goto(site)
    assert page.locator(stopped).inner_text() == "2026-11-27 07:00 UTC (90 min ago)"
    page.clock.fast_forward(600_000)
    assert page.locator(stopped).inner_text() == "2026-11-27 07:00 UTC (100 min ago)"


def test_the_filter_opens_the_group_of_a_match(browser: Browser, site: str) -> None:
    page, _ = open_page(browser, site)
    assert page.locator("[data-filter=failures] .group .item:visible").count() == 0
    name = str(page.locator("[data-filter=failures] .group .item .test").first.text_content())
    page.get_by_role("searchbox", name="Filter failures").fill(name)
    assert page.locator("[data-filter=failures] .group .item:visible").count() == 1


def test_an_empty_history_is_a_page_as_well(browser: Browser, tmp_path: Path) -> None:
    page, wrong = open_page(browser, site_of(tmp_path, "torch_emu", tmp_path / "site"))
    assert page.locator("pre", has_text="accel-ci run nightly").is_visible()
    assert wrong == []
