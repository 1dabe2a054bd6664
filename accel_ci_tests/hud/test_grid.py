"""The grid: which builds have a row, what a cell tells, and what the first page's head has."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

from accel_ci.hud.grid import LEAST_ROWS, GridPage, make_grid, words_of
from accel_ci.hud.kept import KeptBuild
from accel_ci.hud.records import BuildRecord
from accel_ci.hud.render import Site, render_page
from accel_ci.hud.speed import Times
from accel_ci.hud.summary import RevisionBuilds, earlier_builds, summarise
from accel_ci.model import Build, Revision, Source, Trigger
from accel_ci.pipelines import STAGES
from accel_ci_tests.hud.samples import NOW, VARIANTS, ledger, record


def revision(day: int, *builds: BuildRecord, trigger: Trigger = "nightly", known: Revision | None = None) -> RevisionBuilds:
    summaries = tuple(summarise(build, None, Times(None, None), NOW) for build in builds)
    key = builds[0].build.revision if builds else f"{trigger}-202611{day}"
    return RevisionBuilds(key, NOW - timedelta(days=27 - day), known, summaries)


def html_of(page: GridPage) -> str:
    return render_page("index.html", Site("emu", NOW), "builds.json", page=page)


def test_each_trigger_has_its_rows_nightlies_first() -> None:
    bad = ledger({"passed": 30, "failed": 5})
    commits = [
        replace(
            revision(27, BuildRecord(Build(f"main-{n}", VARIANTS[0]), STAGES, ledger=ledger({"passed": 32}))),
            seen_at=NOW - timedelta(hours=n),
        )
        for n in (1, 2)
    ]
    page = make_grid("emu", [*commits, revision(26, record(bad, 26)), revision(25, record(bad, 25))], {}, now=NOW)
    assert [row.key for row in page.rows] == ["nightly-20261126", "nightly-20261125", "main-1", "main-2"]
    assert [row.key for row in page.latest] == ["nightly-20261126", "main-1"]
    html = html_of(page)
    assert re.findall('<tbody data-trigger="(.*)">', html) == ["nightly", "main"]
    assert re.findall('id="show-([a-z]+)"', html) == ["nightly", "main", "all"]
    assert html.count("Latest nightly") == html.count("Latest main") == 1


def test_a_cell_tells_what_is_new_retried_lost_and_muted() -> None:
    account = ledger({"passed": 5, "failed": 3, "flaky": 2, "infra": 1}, infra_attempts=4, muted=("unit: test_a",))
    page = make_grid("emu", [revision(27, record(account))], {}, now=NOW)
    [cell] = page.rows[0].cells
    assert cell.marks == {"retried": 2, "infra": 4, "muted": 1}
    assert words_of(cell.marks) == "2 passed when retried, 4 infra attempts, 1 in quarantine"
    assert cell.address is None
    assert {one.kind for one in cell.suites} == {"failed"}
    assert {one.bad for one in cell.suites} == {4}


def test_a_build_without_a_page_is_no_link() -> None:
    one = revision(27, record(ledger({"passed": 5})))
    known = KeptBuild("signature", one.builds[0], page="stamp")
    with_page = make_grid("emu", [one], {one.builds[0].build.name: known}, now=NOW)
    assert with_page.rows[0].cells[0].address == f"builds/nightly-20261127~{VARIANTS[0]}.html"
    assert 'href="builds/' in html_of(with_page)
    assert 'href="builds/' not in html_of(make_grid("emu", [one], {}, now=NOW))


def test_a_row_has_changed_when_a_state_differs_from_that_of_the_build_before() -> None:
    good, bad = ledger({"passed": 5}), ledger({"passed": 4, "failed": 1})
    shapes = [(27, bad), (26, bad), (25, good), (24, good)]
    page = make_grid("emu", [revision(day, record(account, day)) for day, account in shapes], {}, now=NOW)
    assert [row.has_changed for row in page.rows] == [False, True, False, False]


def test_many_variants_have_fewer_rows_of_each_trigger() -> None:
    revisions = [
        revision(27 - day, *(record(ledger({"passed": 5}), 27 - day, f"variant-{n}") for n in range(80)))
        for day in range(20)
    ]
    page = make_grid("emu", revisions, {}, now=NOW)
    assert (len(page.rows), page.counts) == (LEAST_ROWS, {"nightly": 20})
    assert "all 20 nightly revisions" in html_of(page)
    assert len(make_grid("emu", revisions, {}, now=NOW, rows=90).rows) == 20


def sources(key: str, backend: str, upstream: str) -> Revision:
    return Revision(
        key,
        "nightly",
        NOW,
        Source("https://github.com/emu/torch_emu.git", "HEAD", backend * 40),
        Source("https://x:y@git.example/p.git", "HEAD", upstream * 40),
    )


def test_the_commits_between_two_rows_are_a_link_without_credentials() -> None:
    account = ledger({"passed": 5})
    page = make_grid(
        "emu",
        [
            revision(27, record(account), known=sources("nightly-20261127", "b", "d")),
            revision(26, record(account, 26), known=sources("nightly-20261126", "a", "d")),
            revision(25, record(account, 25), known=sources("nightly-20261125", "a", "c")),
        ],
        {},
        now=NOW,
    )
    assert [[step.name for step in row.commits] for row in page.rows] == [["backend"], ["upstream"], []]
    assert page.rows[0].commits[0].address == f"https://github.com/emu/torch_emu/compare/{'a' * 40}...{'b' * 40}"
    html = html_of(page)
    assert f"https://git.example/p/compare/{'c' * 40}...{'d' * 40}" in html
    assert "x:y" not in html


def test_a_build_is_compared_with_those_of_its_own_trigger_and_a_pull_request_with_the_branch() -> None:
    account = ledger({"passed": 5})
    pull = replace(revision(27, BuildRecord(Build("pr-7", VARIANTS[0]), STAGES, ledger=account)), seen_at=NOW)
    other = replace(revision(27, BuildRecord(Build("pr-6", VARIANTS[0]), STAGES, ledger=account)), seen_at=NOW)
    nights = [revision(day, record(account, day)) for day in (26, 25)]
    revisions = [pull, other, *nights]
    assert [one.build.revision for one in earlier_builds(revisions, pull, pull.builds[0])] == [
        "nightly-20261126", "nightly-20261125",
    ]  # fmt: skip
    assert [one.build.revision for one in earlier_builds(revisions, nights[0], nights[0].builds[0])] == ["nightly-20261125"]
    part = replace(nights[1], builds=(replace(nights[1].builds[0], suites={"pytorch": {}}),))
    assert not list(earlier_builds([nights[0], part], nights[0], nights[0].builds[0]))
