"""The relay's pages in a real browser: nothing on them is a barrier, is hard to read, or runs what a backend sent.

`ACCEL_CI_CHROMIUM` names the browser.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser

from accel_ci.relay.allowlist import parse_allowlist
from accel_ci.relay.pages.write import PagesSource, write_pages
from accel_ci.relay.results_store import ResultsStore
from accel_ci_tests.fixtures.browser import LOW_CONTRAST, barriers, open_page
from accel_ci_tests.fixtures.job_rows import NOW, failed_tests, job_row, verdict

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e" + "long" * 60
ENDS = ("success", "failure", "timed_out", "cancelled", "neutral")
CATEGORIES = ("upstream", "backend", "infra", "flake", "unknown")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages with jobs of all states and verdicts, and hostile texts."""
    root = tmp_path_factory.mktemp("pages")
    store = ResultsStore(root / "results")
    tests = failed_tests(HOSTILE, "test_a", message=HOSTILE)
    store.add([
        job_row(days / 10, conclusion=end, job_name=f"{end} {HOSTILE}", failed_tests=tests if end == "failure" else "",
                triage_verdict=verdict(CATEGORIES[days % 5], HOSTILE), repository=repository, level=level, artifact_url="https://a.b/c",
                url=f"javascript:{HOSTILE}" if days % 2 else "https://ci.example.org/1", head_sha=f"{days:02x}" * 20)
        for days, end in enumerate(ENDS * 4)
        for repository, level in (("org/backend", "L2"), ("org/other", "L3"))
    ])  # fmt: skip
    store.add([job_row(0, status="in_progress", delivery_id="running")])
    allowlist = parse_allowlist("L1: [org/plain]\nL2: [{org/backend: [ann]}]\nL3: {emu: {org/other: []}}\n", "allowlist.yml")
    write_pages(PagesSource(store, allowlist, "upstream/project"), root / "site", NOW)
    empty = PagesSource(ResultsStore(root / "none"), parse_allowlist("", "allowlist.yml"), "upstream/project")
    write_pages(empty, root / "site/empty", NOW)
    return root / "site"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_nothing_on_any_page_is_a_barrier(
    browser: Browser, folder: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    found = []
    pages = sorted(folder.rglob("*.html"))
    assert len(pages) == 3 + 3 + 1 + 3
    for path in pages:
        page, wrong = open_page(browser, path.as_uri(), width, scheme)
        page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
        found += [f"{path.name}: {one}" for one in (*wrong, *page.evaluate(LOW_CONTRAST), *barriers(page))]
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            found.append(f"{path.name}: wider than the window")
        page.context.close()
    assert not found, "\n".join(found)


def test_a_list_can_be_filtered(browser: Browser, folder: Path) -> None:
    page, wrong = open_page(browser, (folder / "backends/org~backend.html").as_uri())
    rows = page.locator("section:has(#recent) [data-row]")
    before = rows.locator("visible=true").count()
    page.get_by_label("Filter jobs").fill("timed out")
    assert 0 < rows.locator("visible=true").count() < before
    assert page.locator("nav form").count() == 0, "the pages have no search of tests"
    assert not wrong
    page.context.close()
