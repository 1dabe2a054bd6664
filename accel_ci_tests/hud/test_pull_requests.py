"""The page of pull requests: only what the change broke is its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from accel_ci.hud.kept import KeptBuild
from accel_ci.hud.pull_requests import KINDS, make_pull_requests
from accel_ci.hud.records import BuildRecord
from accel_ci.hud.render import Site, render_page
from accel_ci.hud.speed import Times
from accel_ci.hud.summary import RevisionBuilds, summarise
from accel_ci.model import Build, Verdict
from accel_ci.pipelines import STAGES
from accel_ci_tests.hud.samples import NOW, VARIANTS, ledger, record

BUILD = Build("pr-42", VARIANTS[0])


def revision(counts: dict[Verdict, int] | None) -> RevisionBuilds:
    account = ledger(counts) if counts is not None else None
    one = BuildRecord(BUILD, STAGES if account else STAGES[:3], changed_at=NOW, ledger=account)
    return RevisionBuilds("pr-42", NOW, None, (summarise(one, None, Times(None, None), NOW),))


def kept(one: RevisionBuilds, **facts: Any) -> dict[str, KeptBuild]:
    return {BUILD.name: replace(KeptBuild("s", one.builds[0], page="stamp"), **facts)}


@pytest.mark.parametrize(
    ("counts", "blamed", "words"),
    [
        (None, {}, "pending"),
        ({"passed": 5}, {}, "no failure"),
        ({"passed": 5, "failed": 2}, {}, "not judged yet"),
        ({"passed": 5, "failed": 2}, {"new": 1, "flaky": 1}, "the change breaks tests"),
        ({"passed": 5, "failed": 2}, {"broken base": 1, "infra": 1}, "not the change's failures"),
        ({"passed": 5, "failed": 2}, {"broken base": 1, "unknown": 1}, "cannot be told yet"),
    ],
)
def test_the_author_is_told_whether_it_is_the_change(
    counts: dict[Verdict, int] | None, blamed: dict[str, int], words: str
) -> None:
    one = revision(counts)
    [pull] = make_pull_requests([one], kept(one, blamed=blamed))
    [build] = pull.builds
    assert build.words == words
    assert (build.failures is None) == (words in ("pending", "not judged yet"))


def test_other_triggers_are_not_there_and_each_number_is() -> None:
    one = revision({"passed": 5, "failed": 9})
    night = RevisionBuilds(
        "nightly-20261127", NOW, None, (summarise(record(ledger({"failed": 1})), None, Times(None, None), NOW),)
    )
    blamed = dict(zip(KINDS, (1, 2, 3, 4, 5), strict=True))
    pulls = make_pull_requests([one, night], kept(one, blamed=blamed))
    assert [pull.key for pull in pulls] == ["pr-42"]
    html = render_page("pulls.html", Site("emu", NOW), "pulls.json", pulls=pulls, kinds=KINDS)
    assert [f'<td class="n">{n}</td>' in html for n in range(1, 6)] == [True] * 5
    assert f'href="builds/pr-42~{VARIANTS[0]}.html"' in html


def test_pages_link_to_other_sites() -> None:
    site = Site("emu", NOW, links={"Relay": "https://relay.example.org/hud/"})
    page = render_page("pulls.html", site, pulls=[], kinds=KINDS)
    assert '<a href="https://relay.example.org/hud/" rel="noreferrer">Relay</a>\n</nav>' in page
    assert "relay.example.org" not in render_page("pulls.html", Site("emu", NOW), pulls=[], kinds=KINDS)
