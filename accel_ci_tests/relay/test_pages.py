"""The relay's pages over rows of jobs: what they show, what is hostile in it, and when they are written."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from accel_ci.relay.allowlist import parse_allowlist
from accel_ci.relay.pages.write import PagesSource, site_of_api, write_pages
from accel_ci.relay.results_store import ResultsStore
from accel_ci_tests.fixtures.job_rows import DAY_S, NOW, failed_tests, job_row, verdict

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e\0\ud800{{ 7 * 7 }}"
ALLOWLIST = """
L1: [org/plain]
L2: [{org/backend: {oncalls: [ann, bob]}}]
L3: {emu: {org/other: []}}
L4: [org/.dots..html]
"""


class Page(HTMLParser):
    """The texts, links and tags of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self._words: list[str] = []
        self.rows: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._words).split())

    def row(self, beginning: str) -> str:
        """The text of the table row that begins so."""
        return next(row for row in self.rows if row.startswith(beginning))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)
        self.links += [value or "" for name, value in attrs if name in ("href", "src") and not (value or "").startswith("#")]
        if tag == "tr":
            self.rows.append("")

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] in (["script"], ["style"]):
            return
        self._words.append(data)
        if self.rows:
            self.rows[-1] = " ".join(f"{self.rows[-1]} {data}".split())


@pytest.fixture
def source(tmp_path: Path) -> PagesSource:
    """A store with a pull request of three jobs, what fails without it, and a backend that is known for long."""
    store = ResultsStore(tmp_path / "results")
    begun = job_row(0.01, repository="org/other", level="L3", status="in_progress", head_sha="c" * 40)
    failed = {"conclusion": "failure", "failed": 2, "failed_tests": failed_tests("test_new", "test_old")}
    store.add([
        job_row(0.02, head_sha="c" * 40, **failed, triage_verdict=verdict("backend", "the cast is wrong")), begun,
        job_row(0.03, head_sha="c" * 40, job_name="without a baseline", **failed),
        job_row(1, head_sha="d" * 40), job_row(20, pull_request=5),
        job_row(2, event="push", pull_request=None, conclusion="failure", failed_tests=failed_tests("test_old")),
        *(job_row(days, pull_request=None, event="nightly") for days in range(3, 50)),
    ])  # fmt: skip
    return PagesSource(store, parse_allowlist(ALLOWLIST, "allowlist.yml"), "upstream/project")


def test_the_summary_of_backends(source: PagesSource, tmp_path: Path) -> None:
    write_pages(source, tmp_path / "site", NOW)
    page = Page(tmp_path / "site/index.html")
    backend = page.row("org/backend")
    assert backend.startswith("org/backend L2 hold failed #7 cccccccccccc")
    assert "80.0% (54.8% to 93.0%)" in backend
    assert backend.endswith("ann, bob")
    assert page.row("org/other").startswith("org/other emu L3 no data in progress #7")
    assert page.row("org/plain").startswith("org/plain L1 no data none no data")
    data = json.loads((tmp_path / "site/index.json").read_text())
    assert [one["repository"] for one in data["backends"]] == ["org/plain", "org/backend", "org/other", "org/.dots..html"]
    for link in page.links:
        assert (
            link.startswith(("https://github.com/upstream/project/", "https://ci.example.org/"))
            or (tmp_path / "site" / link).is_file()
        ), link


def test_a_pull_request_has_its_jobs_by_backend_and_what_is_new(source: PagesSource, tmp_path: Path) -> None:
    write_pages(source, tmp_path / "site", NOW)
    page = Page(tmp_path / "site/pulls/7.html")
    known = page.row("org/backend nightly / py311~smoke")
    assert "failed 10 passed, 2 failed, 1 skipped 1 new , 1 broken before backend high the cast is wrong" in known
    assert "not known" in page.row("org/backend nightly / without a baseline")
    assert "in progress no counts" in page.row("org/other nightly / py311~smoke")
    assert page.text.index("cccccccccccc") < page.text.index("dddddddddddd"), "the newest commit is not first"
    data = json.loads((tmp_path / "site/pulls/7.json").read_text())
    job = next(one for one in data["commits"][0]["jobs"] if one["job"] == "py311~smoke" and one["failures"])
    assert [(one["test"], one["novelty"]) for one in job["failures"]] == [
        ("tests/test_ops.py::test_new", "new"),
        ("tests/test_ops.py::test_old", "broken"),
    ]
    listed = Page(tmp_path / "site/pulls.html")
    assert listed.row("#7").startswith("#7 cccccccccccc 2 failed, 1 in progress")
    assert not any(row.startswith("#5") for row in listed.rows), "a pull request of three weeks ago is shown"


def test_a_backend_has_its_jobs_tests_criteria_and_times(source: PagesSource, tmp_path: Path) -> None:
    write_pages(source, tmp_path / "site", NOW)
    page = Page(tmp_path / "site/backends/org~backend.html")
    assert page.row("#7 cccccccccccc").startswith("#7 cccccccccccc nightly / py311~smoke failed 10 passed")
    assert page.row("tests/test_ops.py::test_old").startswith("tests/test_ops.py::test_old assert 1 == 2 3 ")
    assert "80.0% (54.8% to 93.0%) > 90% not met (the interval reaches over the goal) 15" in page.row("jobs that pass 80")
    assert page.row("nightly 1").startswith("nightly 11 1 h 00 m 10 m 00 s 50 m 00 s")
    assert "days at L2 49.0 days ≥ 30 days met" in page.row("days at L2")
    assert "80.0% of jobs pass" in (tmp_path / "site/backends/org~backend.svg").read_text()
    assert "no data" in (tmp_path / "site/backends/org~plain.svg").read_text()


def test_the_level_board(source: PagesSource, tmp_path: Path) -> None:
    write_pages(source, tmp_path / "site", NOW)
    page = Page(tmp_path / "site/levels.html")
    assert page.row("org/backend").startswith("org/backend hold jobs that pass: 80.0% (54.8% to 93.0%), goal > 90%")
    assert "2026-10-12" in page.row("org/backend")
    found = json.loads((tmp_path / "site/levels.json").read_text())["levels"]
    assert {one["repository"]: one["advice"] for one in found} == {
        "org/plain": "no data", "org/backend": "hold", "org/other": "no data", "org/.dots..html": "hold",
    }  # fmt: skip


def test_only_what_has_changed_is_written(source: PagesSource, tmp_path: Path) -> None:
    site = tmp_path / "site"

    def times() -> dict[str, int]:
        return {path.relative_to(site).as_posix(): path.stat().st_mtime_ns for path in site.rglob("*.html")}

    assert write_pages(source, site, NOW) == len(times()) == 3 + 4 + 1
    before = times()
    assert write_pages(source, site, NOW + 60) == 0
    assert times() == before
    source.store.add([job_row(0, at=NOW + 30, pull_request=8, delivery_id="new")])
    write_pages(source, site, NOW + 60)
    changed = {name for name, time in times().items() if before.get(name) != time}
    assert changed == {"index.html", "levels.html", "pulls.html", "pulls/8.html", "backends/org~backend.html"}
    (site / "pulls/7.html").unlink()
    assert write_pages(source, site, NOW + 60) == 1
    assert (site / "pulls/7.html").exists()


def test_what_is_too_old_or_gone_is_removed(source: PagesSource, tmp_path: Path) -> None:
    site = tmp_path / "site"
    write_pages(source, site, NOW)
    smaller = replace(source, allowlist=parse_allowlist("L2: [org/backend]\n", "allowlist.yml"))
    write_pages(smaller, site, NOW + 15 * DAY_S)
    assert [path.name for path in (site / "pulls").iterdir()] == []
    assert sorted(path.name for path in (site / "backends").iterdir()) == [
        f"org~backend.{end}" for end in ("html", "json", "svg")
    ]


def test_nothing_hostile_becomes_a_part_of_a_page(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path / "results")
    texts = dict.fromkeys(("workflow", "job_name", "head_sha", "upstream", "device", "run_attempt", "level"), HOSTILE)
    strange = ["[]", "[1, {}]", '{"name": "a"}', "{", '"', "null", "[" * 100_000, failed_tests(HOSTILE, message=HOSTILE)]
    store.add([
        job_row(number / 100, **texts, conclusion="failure", url="javascript:alert(1)", artifact_url=f"data:{HOSTILE}",
                failed_tests=tests, triage_verdict=tests if number % 2 else verdict(HOSTILE, HOSTILE))
        for number, tests in enumerate(strange)
    ])  # fmt: skip
    store.add([job_row(1, repository="../../evil/<b>", url="https://user:secret@ci.example.org/")])
    source = PagesSource(store, parse_allowlist(ALLOWLIST, "allowlist.yml"), "upstream/project")
    write_pages(source, tmp_path / "site", NOW)
    for path in (tmp_path / "site").rglob("*.html"):
        page = Page(path)
        assert page.tags.count("script") == 1
        assert not {"img", "iframe", "object", "form", "base"} & set(page.tags)
        assert not [name for name in page.attributes if name.startswith("on")]
        assert all(link.startswith(("https://github.com/", "https://ci.example.org/", "../", "pulls", "backends", "levels",
                                    "index", "org~", "7")) for link in page.links), page.links  # fmt: skip
    page = Page(tmp_path / "site/pulls/7.html")
    assert "<script>alert(1)</script>" in page.text
    assert "[U+202E]" in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert {path.name for path in tmp_path.iterdir()} == {"results", "site"}
    assert sorted(path.name for path in (tmp_path / "site/backends").glob("*.html")) == [
        "org~.dots..html.html", "org~backend.html", "org~other.html", "org~plain.html",
    ]  # fmt: skip


def test_without_backends_and_results_there_are_pages(tmp_path: Path) -> None:
    source = PagesSource(ResultsStore(tmp_path / "results"), parse_allowlist("", "allowlist.yml"), "upstream/project")
    assert write_pages(source, tmp_path / "site", NOW) == 3
    assert "The allowlist has no backend." in Page(tmp_path / "site/index.html").text


@pytest.mark.parametrize(
    ("api", "site"),
    [
        ("https://api.github.com", "https://github.com"),
        ("https://git.example.org/api/v3", "https://git.example.org"),
        ("http://user:secret@127.0.0.1:8000", "http://127.0.0.1:8000"),
    ],
)
def test_the_site_of_an_api(api: str, site: str) -> None:
    assert site_of_api(api) == site
