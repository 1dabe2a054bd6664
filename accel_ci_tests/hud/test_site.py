"""The files of the HUD: whole, free of each other's hostile texts, with the same numbers as their data."""

from __future__ import annotations

import json
import re
import shutil
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest

from accel_ci.hud.render import PAGES
from accel_ci.hud.site import write_site
from accel_ci.model import Build
from accel_ci_tests.hud.samples import HOSTILE, LONG, NOW, VARIANTS, flakiness, workspace_of

ATOM = "{http://www.w3.org/2005/Atom}"


@pytest.fixture
def site(home: Path, tmp_path: Path) -> Path:
    return write_site(workspace_of(home), flakiness(), tmp_path / "site" / "hud", now=NOW).parent


class Links(HTMLParser):
    """The links and the ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [str(given["href"])] if tag in ("a", "link") and "href" in given else []
        self.ids += [str(given["id"])] if given.get("id") else []


def test_the_files_are_written_whole_and_again(home: Path, site: Path) -> None:
    before = {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*.*")}
    assert {*PAGES, "test.html", "incidents.json", "incidents.atom", "badge-state.svg", "data/index.js"} <= before.keys()
    write_site(workspace_of(home), flakiness(), site, now=NOW)
    assert {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*.*")} == before


def test_every_link_leads_somewhere(site: Path) -> None:
    names = [path.relative_to(site).as_posix() for path in (*site.glob("*.html"), *site.glob("builds/*.html"))]
    assert {*PAGES, "test.html", "suites.html", "builds-nightly.html"} <= set(names)
    pages = {name: Links((site / name).read_text()) for name in names}
    to_tests: list[str] = []
    for name, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), name
        for link in page.links:
            if "://" in link:
                continue
            file, _, anchor = link.partition("#")
            target = (site / name).parent / file if file else site / name
            assert target.is_file(), f"{name}: {link}"
            known = target.resolve().relative_to(site.resolve()).as_posix()
            if known == "test.html":
                to_tests.append(unquote(anchor))
                continue
            assert not anchor or anchor in pages[known].ids, f"{name}: {link}"
    assert {f"integration/{HOSTILE}", f"pytorch/{LONG}"} <= set(to_tests)


def test_the_page_of_a_build_is_written_again_only_when_what_it_shows_has_changed(home: Path, site: Path) -> None:
    pages = {path.name: path.stat().st_mtime_ns for path in (site / "builds").glob("*.html")}
    assert len(pages) == 15
    write_site(workspace_of(home), flakiness(), site, now=NOW + timedelta(hours=1))
    assert {path.name: path.stat().st_mtime_ns for path in (site / "builds").glob("*.html")} == pages
    manifests = workspace_of(home).manifests
    shutil.rmtree(manifests.folder(Build("nightly-20261120", VARIANTS[0])))
    manifests.path("wheel", "nightly-20261121", VARIANTS[0]).unlink()
    (site / f"builds/nightly-20261122~{VARIANTS[0]}.html").unlink()
    write_site(workspace_of(home), flakiness(), site, now=NOW)
    after = {path.name: path.stat().st_mtime_ns for path in (site / "builds").glob("*.html")}
    assert pages.keys() - after.keys() == {f"nightly-20261120~{VARIANTS[0]}.html"}
    assert not (site / f"builds/nightly-20261120~{VARIANTS[0]}.json").exists()
    changed = {name for name in after if after[name] != pages[name]}
    assert changed == {f"nightly-202611{day}~{VARIANTS[0]}.html" for day in (21, 22)}


def test_the_numbers_of_a_builds_page_are_those_of_its_ledger_and_its_data(home: Path, site: Path) -> None:
    name = f"nightly-20261127~{VARIANTS[0]}"
    data = json.loads((site / f"builds/{name}.json").read_text())
    ledger = json.loads((home / "builds" / name.replace("~", "/") / "ledger.json").read_text())
    assert data["ledger"]["counts"] == ledger["counts"]
    for verdict in ("failed", "infra", "not_run", "flaky"):
        assert sum(len(group["tests"]) for group in data["groups"][verdict]) == ledger["counts"][verdict]
    assert len(data["changes"]["new"]) + len(data["changes"]["still"]) + len(data["changes"]["returned"]) == 12
    assert sum(ledger["counts"].values()) == ledger["expected"]
    html = (site / f"builds/{name}.html").read_text()
    assert re.findall(r'<h4 id="([a-z-]+)">[A-Za-z ]+ <span class="count">([\d,]+)<', html) == [
        ("failed", "12"), ("infra", "0"), ("not-run", "0"), ("flaky", "3"),
    ]  # fmt: skip


def test_the_incidents_are_those_of_their_data(site: Path) -> None:
    data = json.loads((site / "incidents.json").read_text())
    html = (site / "incidents.html").read_text()
    for one in data["incidents"]:
        assert f'id="i-{one["id"]}"' in html
    is_open = [one for one in data["incidents"] if one["state"] != "fixed"]
    counts = re.findall(r'<h2 id="(\w+)">\w+ <span class="count">(\d+)</span>', html)
    assert counts == [("open", str(len(is_open))), ("fixed", "1")]
    assert HOSTILE.partition("<")[0] in json.dumps(data, ensure_ascii=False)


def test_the_feed_is_atom_with_an_entry_for_each_incident(site: Path) -> None:
    feed = ET.fromstring((site / "incidents.atom").read_bytes())
    entries = feed.findall(f"{ATOM}entry")
    ids = [entry.findtext(f"{ATOM}id") for entry in entries]
    assert len(ids) == len(set(ids)) == 5
    for element in (feed, *entries):
        assert element.findtext(f"{ATOM}title")
        assert element.findtext(f"{ATOM}updated", "").startswith("2026-11-27T08:30:00")
    html = (site / "incidents.html").read_text()
    for entry in entries:
        link = entry.find(f"{ATOM}link")
        assert link is not None
        assert f'id="{link.attrib["href"].partition("#")[2]}"' in html


@pytest.mark.parametrize(
    ("name", "words"),
    [("state", "torch_emu: 12 failed"), ("enabled", "tests enabled: 66.7 %"), ("flaky", "flaky tests: 0.35 %")],
)
def test_badges_tell_the_newest_state(site: Path, name: str, words: str) -> None:
    assert ET.fromstring((site / f"badge-{name}.svg").read_text()).attrib["aria-label"] == words


def test_a_site_without_any_build_has_all_its_pages(tmp_path: Path) -> None:
    folder = write_site(workspace_of(tmp_path / "nothing"), flakiness(), tmp_path / "site", now=NOW).parent
    assert "No build was judged yet" in (folder / "incidents.html").read_text()
    assert "No report was made yet" in (folder / "quality.html").read_text()
    assert "torch_emu: no build" in (folder / "badge-state.svg").read_text()
    assert "tests enabled: unknown" in (folder / "badge-enabled.svg").read_text()
