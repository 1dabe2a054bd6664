"""The page in a real browser: hostile text stays text, nothing is fetched, and it can be read.

`ACCEL_CI_CHROMIUM` names the browser; `ACCEL_CI_SCREENSHOTS` a folder to leave pictures of the page in.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from accel_ci.hud.render import PAGES
from accel_ci.hud.site import write_site
from accel_ci.hud.text import visible
from accel_ci.model import Build
from accel_ci_tests.fixtures.browser import LOOKS, LOW_CONTRAST, open_page
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


BUILD = f"builds/nightly-20261127~{VARIANTS[0]}.html"


@pytest.fixture(scope="module")
def site(history: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return site_of(history, "torch_emu <b>&", tmp_path_factory.mktemp("site"))


def page_in(site: str, name: str) -> str:
    return site.replace("index.html", name)


def test_hostile_text_is_shown_and_never_run(browser: Browser, site: str) -> None:
    page, wrong = open_page(browser, page_in(site, BUILD))
    for button in page.locator(".tools button").all():
        button.click()
    body = page.inner_text("body")
    assert "test_<script>document.title='owned'</script>\"'[[U+202E]gnp.exe[U+001B][31m[U+0000]]" in body
    assert visible(HOSTILE_MESSAGE) in body
    assert page.title() == f"nightly-20261127~{VARIANTS[0]} · torch_emu <b>&"
    assert page.locator("script").count() == 1
    assert page.locator("img, b:has-text('&')").count() == 0
    assert wrong == []


def test_the_policy_stops_a_script_that_gets_in(browser: Browser, site: str) -> None:
    for name, title in (("index.html", "Builds"), (BUILD, f"nightly-20261127~{VARIANTS[0]}")):
        page, wrong = open_page(browser, page_in(site, name))
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
        page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'document.title = 2'}))")
        page.wait_for_timeout(100)
        assert page.title() == f"{title} · torch_emu <b>&"
        assert any("Content Security Policy" in line for line in wrong)


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
@pytest.mark.parametrize("name", ["index.html", "suites.html", "builds-nightly.html", BUILD])
def test_it_fits_and_can_be_read(
    browser: Browser, site: str, name: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    page, wrong = open_page(browser, page_in(site, name), width, scheme)
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(LOW_CONTRAST) == []
    assert wrong == []


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
@pytest.mark.parametrize("name", [name for name in PAGES if name not in ("index.html", "pulls.html", "search.html")])
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
    page, _ = open_page(browser, page_in(site, BUILD), script=False)
    assert page.locator(".item summary").count() > 6
    page.locator("#failed + .list summary").first.click()
    assert page.locator("#failed + .list pre").first.is_visible()
    assert page.get_by_role("searchbox").count() == 0
    page.locator(".path a").click()
    assert page.locator("tr:target").count() == 1
    assert page.locator("a.cell").count() == 15


def test_the_filter_hides_what_does_not_match(browser: Browser, site: str) -> None:
    page, _ = open_page(browser, page_in(site, BUILD))
    page.get_by_role("searchbox", name="Filter failed").fill("GNP.exe")
    assert page.locator("[data-filter=failed] .item:visible").count() == 1


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


def test_every_cell_opens_its_build(browser: Browser, site: str) -> None:
    page, _ = open_page(browser, site, script=False)
    cells = page.locator("a.cell")
    addresses = [(str(cell.get_attribute("href")), cell.inner_text()) for cell in cells.all()]
    assert len(addresses) == 15
    for address, words in addresses:
        page.goto(page_in(site, address))
        assert page.locator("h1 .state").inner_text() == words


def shown_rows(page: Page) -> list[str]:
    return [text.split()[0] for text in page.locator(".grid tbody tr:visible").all_inner_texts()]


def test_the_address_keeps_what_the_grid_is_filtered_by(browser: Browser, site: str) -> None:
    page, wrong = open_page(browser, site)
    page.get_by_role("searchbox", name="Filter builds").fill("41 infra")
    assert shown_rows(page) == ["nightly-20261125"]
    expect(page).to_have_url(re.compile(r"\?q=41\+infra$"))
    again, _ = open_page(browser, page.url)
    assert shown_rows(again) == ["nightly-20261125"]
    assert again.get_by_role("status").inner_text() == "1 of 8 revisions"
    page.get_by_role("searchbox", name="Filter builds").fill("")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page).to_have_url(re.compile(r"\?changed=1$"))
    assert "nightly-20261120" not in shown_rows(page), "the first build of each variant has changed nothing"
    assert "nightly-20261121" in shown_rows(page)
    assert wrong == []


def test_from_the_grid_to_build_incident_test_and_card_and_back_by_keyboard(browser: Browser, site: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(site)
    page.locator("a.cell").nth(2).focus()
    page.keyboard.press("ArrowUp")
    assert str(page.evaluate("document.activeElement.getAttribute('href')")) == BUILD
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/{BUILD}")
    page.locator("#i-000000000000 > summary").focus()
    page.keyboard.press("Enter")
    page.locator("#i-000000000000 a[href*='incidents.html']").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/incidents.html#i-000000000000")
    page.locator(".item:target > summary").focus()
    page.keyboard.press("Enter")
    page.locator(".item:target a.to-test").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/test.html#**")
    expect(page.locator("a.to-card").first).to_be_visible()
    expect(page.get_by_text("Loading older builds")).to_have_count(0)
    page.locator("a.to-card").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/cards.html#card-host-emu0")
    for _ in range(4):
        page.go_back()
    page.wait_for_url("**/index.html")


def test_a_link_to_an_incident_of_a_build_opens_it(browser: Browser, site: str) -> None:
    page, _ = open_page(browser, f"{page_in(site, BUILD)}#still")
    assert page.locator("#still a.to-test").first.is_visible()


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
    page, _ = open_page(browser, page_in(site, BUILD))
    names = page.locator("[data-filter=failed] .group .names")
    assert names.first.is_hidden()
    name = str(names.locator(".test").first.text_content())
    page.get_by_role("searchbox", name="Filter failed").fill(name)
    assert page.locator("[data-filter=failed] .names li:visible").count() == 1


def test_an_empty_history_is_a_page_as_well(browser: Browser, tmp_path: Path) -> None:
    page, wrong = open_page(browser, site_of(tmp_path, "torch_emu", tmp_path / "site"))
    assert page.locator("pre", has_text="accel-ci run nightly").is_visible()
    assert wrong == []


@pytest.mark.parametrize("name", ["index.html", BUILD])
def test_on_paper_there_is_the_content_and_nothing_to_click(browser: Browser, site: str, name: str) -> None:
    page, wrong = open_page(browser, page_in(site, name), 800, "dark")
    assert page.locator("nav").is_visible()
    page.emulate_media(media="print", color_scheme="light")
    assert page.locator("nav, .tools, button").locator("visible=true").count() == 0
    assert page.locator("h1").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 800
    assert wrong == []
