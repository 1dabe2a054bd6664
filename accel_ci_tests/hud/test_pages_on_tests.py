"""The page of a test and the search in a real browser, from the folder and from a server: they load data alone."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from accel_ci.hud.addresses import test_address
from accel_ci.hud.serve import HudServer
from accel_ci.hud.site import write_site
from accel_ci.hud.text import visible
from accel_ci.model import VERDICTS, Attempt, Build, Outcome
from accel_ci.quality.flakiness import FlakyTest
from accel_ci.results.store import ResultsStore
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci_tests.fixtures.browser import LOOKS, LOW_CONTRAST, open_page
from accel_ci_tests.fixtures.stored_attempts import write_attempts
from accel_ci_tests.hud.samples import (
    HOSTILE,
    HOSTILE_MESSAGE,
    LONG,
    NOW,
    VARIANTS,
    flakiness,
    lay_build,
    lay_revision,
    workspace_of,
)

PLAIN = "tests/pytorch/test_ops.py::TestCommonEMU::test_conv2d_emu_float16[case3]"
SHOWN_HOSTILE = "test_<script>document.title='owned'</script>\"'[[U+202E]gnp.exe[U+001B][31m[U+0000]]"
BACKSLASH = "tests/a.py::test_x[\\x00\\u0041-\n-\u2028-<img src=x>]"


@dataclass(frozen=True)
class Site:
    """A site and its address, which ends with `/`."""

    folder: Path
    base: str

    def open(
        self, browser: Browser, page: str, width: int = 1280, scheme: Literal["light", "dark"] = "light", script: bool = True
    ) -> tuple[Page, list[str]]:
        """See `open_page`."""
        return open_page(browser, self.base + page, width, scheme, script, data=f"{self.base}data/")


@pytest.fixture(scope="module")
def written(history: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the samples' site."""
    folder = tmp_path_factory.mktemp("sites") / "a site #1?"
    known = flakiness()
    flaky = FlakyTest(VARIANTS[0], "pytorch", PLAIN, 240, 12, 0.05, 0.03, 0.08, None)
    write_site(workspace_of(history, "torch_emu <b>&"), replace(known, flaky=(flaky, *known.flaky)), folder, now=NOW)
    return folder


@pytest.fixture(scope="module", params=["file", "http"])
def site(request: pytest.FixtureRequest, written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The samples' site, as a folder and as a server has it."""
    yield from open_site(request.param, written, tmp_path_factory.mktemp("artifacts"))


@pytest.fixture(params=["file", "http"])
def own_site(request: pytest.FixtureRequest, written: Path, tmp_path: Path) -> Iterator[Site]:
    """A copy of the site, to be changed."""
    yield from open_site(request.param, Path(shutil.copytree(written, tmp_path / "site")), tmp_path / "artifacts")


def open_site(scheme: str, folder: Path, artifacts: Path) -> Iterator[Site]:
    """A site by the addresses of its folder or of a server."""
    if scheme == "file":
        yield Site(folder, f"{folder.as_uri()}/")
        return
    server = HudServer(folder, ArtifactStore(artifacts), 0)
    server.start()
    yield Site(folder, server.address)
    server.shutdown()
    server.server_close()


def test_a_deep_link_opens_its_test_and_runs_nothing(browser: Browser, site: Site) -> None:
    page, wrong = site.open(browser, test_address("integration", HOSTILE))
    expect(page.locator(".marks .mark")).to_have_count(3)
    assert page.locator("h1").inner_text() == f"tests/pytorch/test_ops.py::{SHOWN_HOSTILE} integration"
    assert page.title() == f"tests/pytorch/test_ops.py::{SHOWN_HOSTILE} · torch_emu <b>&"
    labels = [page.locator(".mark").nth(n).get_attribute("aria-label") for n in range(3)]
    builds = (f"20261127~{VARIANTS[0]}", f"20261126~{VARIANTS[0]}", f"20261121~{VARIANTS[1]}")
    assert labels == [f"nightly-{build}: failed" for build in builds]
    assert visible(HOSTILE_MESSAGE) in page.locator("#test pre").first.inner_text()
    assert page.locator("main script, main img, main b:has-text('host0'), main u, main i").count() == 0
    assert page.locator("#incidents").inner_text() == "Incidents 5"
    page.wait_for_timeout(100)
    assert wrong == []


def test_what_is_known_of_a_test_leads_on(browser: Browser, site: Site) -> None:
    page, wrong = site.open(browser, test_address("integration", HOSTILE))
    assert "muted in" in page.locator("section", has=page.locator("#quarantine")).inner_text()
    page.locator("section", has=page.locator("#incidents")).get_by_role("link").first.click()
    page.wait_for_url("**/incidents.html#i-*")
    assert page.locator(f"[id='{page.url.partition('#')[2]}']").is_visible()
    page.go_back()
    page.locator(".marks a.mark").first.click()
    page.wait_for_url("**/builds/*.html")
    assert page.locator("#result").is_visible()
    assert [line for line in wrong if not line.startswith("request")] == []


def test_a_flaky_test_has_its_rate_and_the_trend_of_its_durations(browser: Browser, site: Site) -> None:
    page, wrong = site.open(browser, test_address("pytorch", PLAIN))
    rows = page.locator("section", has=page.locator("#variants")).locator("tbody tr")
    expect(rows).to_have_count(2)
    assert "5.0 % (3.0 % to 8.0 %)" in rows.first.inner_text()
    assert "none known" in rows.last.inner_text()
    assert rows.first.locator("svg.line-trend").is_visible()
    assert wrong == []


@pytest.mark.parametrize(
    ("fragment", "words"),
    [
        ("", "The address names no test"),
        ("#pytorch/no/such.py::test", "There is no such test in the builds of the last 90 days"),
        ("#nothing", "There is no such test"),
        ("#pytorch/%zz%", "There is no such test"),
        ("#%00/%E2%80%AE<script>alert(1)</script>", "There is no such test"),
        ("#__proto__/constructor", "There is no such test"),
    ],
)
def test_an_address_without_a_test_says_so(browser: Browser, site: Site, fragment: str, words: str) -> None:
    page, wrong = site.open(browser, f"test.html{fragment}")
    expect(page.locator("#test")).to_contain_text(words)
    expect(page.locator("#test a").first).to_have_attribute("href", re.compile(r"^search\.html"))
    assert wrong == []


def test_another_address_opens_another_test(browser: Browser, site: Site) -> None:
    page, wrong = site.open(browser, test_address("pytorch", PLAIN))
    expect(page.locator("h1")).to_contain_text("test_conv2d_emu_float16[case3]")
    page.evaluate("(hash) => { location.hash = hash; }", test_address("pytorch", LONG).partition("#")[2])
    expect(page.locator("h1")).to_contain_text("-end]")
    expect(page.locator(".marks .mark")).to_have_count(2)
    assert wrong == []


def test_the_tests_of_a_signature_are_named(browser: Browser, site: Site) -> None:
    page, wrong = site.open(browser, test_address("pytorch", PLAIN))
    place = page.locator("details[open] .alike")
    expect(place).to_contain_text("other tests of the build failed with it")
    others = page.locator("details[open] ul a")
    name = str(others.first.text_content())
    others.first.click()
    expect(page.locator("h1")).to_contain_text(name)
    assert wrong == []


def test_the_search_finds_tests_by_parts_of_their_names(browser: Browser, site: Site) -> None:
    page, wrong = site.open(browser, "search.html?q=CONV2d%20%20pytorch/%20cAse1")
    expect(page.locator("#told")).to_have_text(re.compile(r"^\d+ tests of 702$"))
    found = page.locator("#results li")
    assert found.count() == int(page.inner_text("#told").split()[0])
    assert all("conv2d_emu" in text for text in found.all_inner_texts())
    field = page.get_by_role("searchbox", name="Search tests")
    field.fill("float16 CASE3] conv2d")
    expect(page.locator("#told")).to_have_text("1 test of 702")
    assert page.url.endswith("search.html?q=float16%20CASE3%5D%20conv2d")
    expect(found.locator(".state")).to_have_text("failed")
    field.fill("float16 CASE3] conv2d nothing")
    expect(page.locator("#told")).to_have_text("0 tests of 702")
    field.fill("emu")
    expect(found).to_have_count(31)
    states = [text.strip() for text in found.locator(".state").all_inner_texts()]
    assert set(states[:9]) <= {"failed", "flaky", "infra", "not run"}
    assert states[-1] == "passed"
    assert "those that did not pass come first" in page.inner_text("#told")
    page.get_by_role("button", name="470 more").click()
    expect(found).to_have_count(501)
    assert found.last.text_content() == f"{int(page.inner_text('#told').split()[0]) - 500} more; add words to the search"
    page.reload()
    expect(page.get_by_role("searchbox", name="Search tests")).to_have_value("emu")
    page.wait_for_timeout(100)
    assert [line for line in wrong if not line.startswith("request")] == []


def test_the_search_is_used_by_keyboard_from_every_page(browser: Browser, site: Site) -> None:
    page, wrong = site.open(browser, "quality.html")
    page.keyboard.press("/")
    page.keyboard.type("case3] conv2d/", delay=1)
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=case3%5D%20conv2d")
    expect(page.locator("#results a")).to_have_count(1)
    page.keyboard.press("ArrowDown")
    expect(page.locator("#results a")).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("searchbox", name="Search tests")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/test.html#"))
    expect(page.locator("h1")).to_contain_text("test_conv2d_emu_float16[case3]")
    assert [line for line in wrong if not line.startswith("request")] == []


def test_hostile_names_are_found_and_shown_as_text(browser: Browser, home: Path, tmp_path: Path) -> None:
    revision, variant = lay_revision(home, 0, trigger="main", key="main-1", hours=1), '"><img src=x onerror=alert(3)>'
    outcomes: tuple[Outcome, ...] = ("failed", "passed")
    attempts = [
        Attempt("<u>suite", BACKSLASH, number, outcome, None, 0.5, HOSTILE_MESSAGE, None, "<i>card", "<b>host", "w")
        for number, outcome in enumerate(outcomes, 1)
    ]
    write_attempts(ResultsStore(home / "results"), Build(revision.key, variant), NOW.date(), attempts)
    folder = tmp_path / "site"
    write_site(workspace_of(home), flakiness(), folder, now=NOW)
    site = Site(folder, f"{folder.as_uri()}/")
    page, wrong = site.open(browser, "search.html?q=" + quote("<img x00\\u0041 <U>SUITE"))
    page.wait_for_timeout(100)
    link = page.locator("#results a")
    expect(link).to_have_count(1)
    assert str(link.text_content()) == r"tests/a.py::test_x[\x00\u0041-\n-[U+2028]-<img src=x>]"
    link.click()
    expect(page.locator(".mark")).to_have_count(1)
    assert page.locator(".mark").get_attribute("title") == f"main-1~{variant}: flaky"
    text = page.inner_text("#test")
    assert "<i>card" in text
    assert "<b>host" in text
    assert page.locator("main script, main img, main i, main u").count() == 0
    assert [line for line in wrong if not line.startswith("request")] == []


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
@pytest.mark.parametrize(
    "address",
    [test_address("integration", HOSTILE), test_address("pytorch", PLAIN), test_address("pytorch", LONG), "search.html?q=e"],
    ids=["hostile", "plain", "long", "search"],
)
def test_pages_on_tests_fit_and_can_be_read(
    browser: Browser, site: Site, address: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    page, wrong = site.open(browser, address, width, scheme)
    expect(page.locator("#results li, #commands").first).to_be_visible()
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(LOW_CONTRAST) == []
    assert wrong == []
    if folder := os.environ.get("ACCEL_CI_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{address.partition('.')[0]}-{scheme}-{width}.png", full_page=True)


@pytest.mark.parametrize("name", ["test.html", "search.html"])
def test_without_scripts_the_page_says_so(browser: Browser, site: Site, name: str) -> None:
    page, _ = site.open(browser, name, script=False)
    assert "This page needs scripts" in page.inner_text("main")


@pytest.mark.parametrize("name", ["test.html", "search.html"])
def test_nothing_from_elsewhere_is_loaded_even_if_markup_gets_in(
    browser: Browser, site: Site, name: str, tmp_path: Path
) -> None:
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "index.html").write_text("")
    (evil / "evil.js").write_text("document.title = 'owned'")
    server = HudServer(evil, ArtifactStore(tmp_path / "artifacts"), 0)
    server.start()
    page, wrong = site.open(browser, f"{name}#pytorch/x")
    page.evaluate(
        "(address) => document.head.append(Object.assign(document.createElement('script'), { src: address }))",
        f"{server.address}evil.js",
    )
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
    frame = "<iframe srcdoc=\"<script src='data/index.js'></script>\"></iframe>"
    page.evaluate("(frame) => document.body.insertAdjacentHTML('beforeend', frame)", frame)
    page.wait_for_timeout(200)
    assert "owned" not in page.title()
    assert len([line for line in wrong if "Content Security Policy" in line]) >= 2
    server.shutdown()
    server.server_close()


def test_a_script_in_the_markup_of_the_page_does_not_run(browser: Browser, own_site: Site) -> None:
    (own_site.folder / "data" / "evil.js").write_text("document.title = 'owned'")
    html = own_site.folder / "test.html"
    html.write_text(html.read_text().replace("</main>", "<script src='data/evil.js'></script><script>1</script></main>"))
    page, wrong = own_site.open(browser, "test.html#pytorch/x")
    expect(page.locator("#test")).to_contain_text("There is no such test")
    assert page.title() == "x · torch_emu <b>&"
    assert len([line for line in wrong if "Content Security Policy" in line]) >= 2


def test_missing_data_are_told(browser: Browser, own_site: Site) -> None:
    (own_site.folder / "data" / "index.js").unlink()
    page, _ = own_site.open(browser, "test.html#pytorch/x")
    expect(page.locator("#test")).to_contain_text("data/index.js cannot be loaded. Is the folder of the HUD whole?")
    (own_site.folder / "data" / "names" / "0.js").unlink()
    page, _ = own_site.open(browser, "search.html?q=x")
    expect(page.locator("#told")).to_contain_text("data/names/0.js cannot be loaded.")


@pytest.mark.parametrize(
    "name",
    ["tests/a.py::test_b", "it's $HOME `id` $(id) \\", "a\nb\t\x1b[31m'\\", "~user", "\u202eabc ä 🙂 \u2028", "-x"],
    ids=ascii,
)
def test_commands_have_the_name_as_one_word(browser: Browser, site: Site, name: str) -> None:
    page, _ = site.open(browser, "test.html#pytorch/x")
    word = page.evaluate("(name) => quoted(name)", name)
    assert re.search(r"[\x00-\x1f\x7f\u202e\u2028]", word) is None
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    printed = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True, env=environment)
    assert printed.stdout.decode() == name


def test_the_page_tells_what_is_stored(browser: Browser, tmp_path: Path) -> None:
    rng, store = random.Random(7), ResultsStore(tmp_path / "results")
    tests = [f"tests/test_a.py::test_{n}" for n in range(300)]
    outcomes: tuple[Outcome, ...] = ("passed", "passed", "passed", "failed", "skipped", "xfailed", "xpassed", "not_run")
    for age, variant in itertools.product((0, 1, 9, 20, 50), VARIANTS):
        attempts = [
            Attempt(
                "unit", test, number, rng.choice(outcomes), NOW, rng.random(), "why", None, "0", "host", "w", cached=cached
            )
            for test in tests[: rng.choice([300, 250])]
            for cached in [rng.random() < 0.1]
            for number in range(1, rng.choice([2, 2, 3]))
        ]
        write_attempts(store, Build(f"nightly-{age}", variant), NOW.date() - timedelta(days=age), attempts)
    stored = {test: dict[str, str]() for test in tests}
    for one in store.suites():
        for row in store.judged(one).to_pylist():
            words = VERDICTS[row["verdict"]].replace("_", " ") + (", cached" if row["cached"] else "")
            stored[row["test"]][one.build.name] = words
    folder = tmp_path / "site"
    write_site(workspace_of(tmp_path), flakiness(), folder, now=NOW)
    page, wrong = Site(folder, f"{folder.as_uri()}/").open(browser, "test.html")
    for test in rng.sample(tests, 12):
        page.evaluate("(hash) => { location.hash = hash; }", test_address("unit", test).partition("#")[2])
        expect(page.locator("h1")).to_have_text(f"{test} unit")
        marks = page.locator(".mark")
        expect(marks).to_have_count(len(stored[test]))
        labels = [str(marks.nth(number).get_attribute("aria-label")) for number in range(marks.count())]
        assert dict(label.split(": ") for label in labels) == stored[test]
        assert [label.partition("~")[0] for label in labels] == sorted(
            (label.partition("~")[0] for label in labels), key=lambda key: int(key.partition("-")[2])
        )
    assert wrong == []


def test_long_histories_are_shown_on_demand(browser: Browser, home: Path, tmp_path: Path) -> None:
    for number in range(45):
        commit = lay_revision(home, 0, trigger="main", key=f"main-{number:02}", hours=number)
        lay_build(home, Build(commit.key, VARIANTS[0]), {"passed": 5})
    folder = tmp_path / "site"
    write_site(workspace_of(home), flakiness(), folder, now=NOW)
    page, wrong = Site(folder, f"{folder.as_uri()}/").open(
        browser, test_address("integration", "tests/pytorch/test_ops.py::TestCommonEMU::test_add_emu_float16[case0]")
    )
    rows = page.locator(".marks tbody tr")
    expect(rows).to_have_count(40)
    page.get_by_role("button", name="older revisions").click()
    assert rows.count() > 45
    keys = [text.split()[0] for text in page.locator(".marks tbody th").all_inner_texts()]
    assert keys[0] == "main-00"
    assert len(keys) == len(set(keys))
    assert wrong == []
