"""Write the HUD: all pages, the same data as JSON, the feed of incidents and the badges.

    index.html                        the builds
    incidents.html  incidents.json    whose the failures are, the open ones first; incidents.atom is the feed
    flaky.html      flaky.json        flaky tests, the quarantine and what it hides
    cards.html      cards.json        the health of cards, and their failures by day
    coverage.html   coverage.json     the tests in scope, those enabled and those that pass
    speed.html      speed.json        where the wall time of builds goes
    quality.html    quality.json      the criteria of the levels, and tests that became worse
    test.html  search.html            one test, and the search of all, with the data that they load from data/
    badge-state.svg, badge-enabled.svg, badge-flaky.svg

What pages show is decided in `page.py` and in `accel_ci.quality`; the HTML is that of `render.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from accel_ci.hud.badges import badges_of
from accel_ci.hud.cards import CardBuild, make_cards
from accel_ci.hud.data.names import A_FILE
from accel_ci.hud.data.update import HISTORY_DAYS, update_test_data
from accel_ci.hud.feed import feed_of
from accel_ci.hud.gather import gather
from accel_ci.hud.page import HudPage
from accel_ci.hud.records import BuildRecord
from accel_ci.hud.render import Site, render_hud, render_page
from accel_ci.hud.speed import PARTS, Times, make_speed
from accel_ci.model import Trigger
from accel_ci.quality.current_quarantine import QuarantineState, read_quarantine
from accel_ci.quality.flakiness import Flakiness
from accel_ci.quality.judgement import read_causes, read_incidents
from accel_ci.quality.levels import LevelReport, shown
from accel_ci.quality.plot import plot_causes
from accel_ci.quality.report import REPORT
from accel_ci.quality.trends import TRENDS, Trends
from accel_ci.ramp.coverage import CoverageReport
from accel_ci.ramp.current import COVERAGE
from accel_ci.ramp.plot import draw_trend
from accel_ci.redaction import redact
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.workspace import Workspace

LISTED = 50
"""The number of tests that an incident lists in full."""

FLAKY_LISTED = 1000
"""The number of tests that the page of flaky tests lists; the JSON has all."""


def write_site(workspace: Workspace, flakiness: Flakiness, folder: Path, *, now: datetime) -> Path:
    """Write all files to `folder`, each atomically, and return the path of the first page."""
    page = gather(workspace, flakiness, now=now)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, {"index.html": render_hud(page), **_quality_pages(workspace, flakiness, page)})
    _write(folder, _test_pages(workspace, flakiness, page, folder, now))
    return folder / "index.html"


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        write_whole_file(folder / name, redact(content).encode(errors="backslashreplace"))


def _test_pages(workspace: Workspace, flakiness: Flakiness, page: HudPage, folder: Path, now: datetime) -> dict[str, str]:
    """The pages on tests, after their data."""
    quarantine, incidents = read_quarantine(workspace), read_incidents(workspace).incidents
    shown = {cell.build for row in page.rows for cell in row.cells if cell.anchor is not None}
    entries = quarantine.entries if quarantine is not None else ()
    data = update_test_data(workspace.results, workspace.manifests, folder, flakiness, entries, incidents, shown, now)
    site = Site(page.project, page.generated_at)
    return {
        "test.html": render_page("test.html", site, data=data, days=HISTORY_DAYS),
        "search.html": render_page("search.html", site, data=data, size=A_FILE),
    }


def _quality_pages(workspace: Workspace, flakiness: Flakiness, page: HudPage) -> dict[str, str]:
    manifests, site = workspace.manifests, Site(page.project, page.generated_at)
    incidents = read_incidents(workspace)
    quarantine = read_quarantine(workspace) or QuarantineState(page.generated_at.date())
    report = manifests.read_history(manifests.path(REPORT), LevelReport)
    trends = manifests.read_history(manifests.path(TRENDS), Trends) or Trends()
    cards = make_cards(_card_builds(workspace, page))
    speed = make_speed(_timed_builds(workspace, page))
    coverage = manifests.read_history(manifests.path(COVERAGE), CoverageReport) or CoverageReport()
    stages = workspace.project.settings.ramp.stages
    shares = [draw_trend(coverage.of_variant(one.build.variant), stages) for one in coverage.latest]
    is_open = [one for one in incidents.incidents if one.state != "fixed"]
    fixed = [one for one in incidents.incidents if one.state == "fixed"]
    nights = [(each.revision, each.counts) for each in incidents.nights]
    shows: dict[str, tuple[Mapping[str, Any], Any]] = {
        "incidents": (
            {"open": is_open, "fixed": fixed, "revision": incidents.revision, "listed": LISTED,
             "plot": plot_causes(nights) if nights else None},
            incidents,
        ),
        "flaky": (
            {"flakiness": flakiness, "quarantine": quarantine, "listed": FLAKY_LISTED},
            {"flakiness": flakiness, "quarantine": quarantine},
        ),
        "cards": ({"cards": cards}, cards),
        "speed": ({"speed": speed, "parts": PARTS}, speed),
        "coverage": ({"coverage": coverage, "trends": shares}, coverage),
        "quality": ({"report": report, "trends": trends, "shown": shown}, {"report": report, "trends": trends}),
    }  # fmt: skip
    files = {"incidents.atom": feed_of(incidents, site), **badges_of(page, flakiness)}
    for name, (values, data) in shows.items():
        files[f"{name}.html"] = render_page(f"{name}.html", site, f"{name}.json", **values)
        files[f"{name}.json"] = msgspec.json.encode(data, order="sorted").decode()
    return files


def _card_builds(workspace: Workspace, page: HudPage) -> list[CardBuild]:
    """Return what the builds of the page tell of cards, the oldest first."""
    days = {row.key: row.seen_at for row in page.rows}
    records = [detail.record for detail in (*page.builds, *page.earlier)]
    found = []
    for record in sorted(records, key=lambda each: (days[each.build.revision], each.build.name)):
        causes = read_causes(workspace, record.build)
        results = record.device_test_results
        found.append(
            CardBuild(
                days[record.build.revision].date(),
                results.cards if results is not None else (),
                causes.places if causes is not None else (),
                causes.bad if causes is not None else (),
            )
        )
    return found


def _timed_builds(workspace: Workspace, page: HudPage) -> list[tuple[BuildRecord, Trigger | None, datetime, Times]]:
    """Return the builds of the page with their times, the newest first."""
    rows, manifests, found = {row.key: row for row in page.rows}, workspace.manifests, []
    for record in (detail.record for detail in (*page.builds, *page.earlier)):
        runs = manifests.last_runs(record.build).values()
        queued = [(run.started_at - run.asked_at).total_seconds() for run in runs if run.started_at is not None]
        row = rows[record.build.revision]
        times = Times(manifests.wall_seconds(record.build), sum(queued) if queued else None)
        found.append((record, row.trigger, row.seen_at, times))
    return sorted(found, key=lambda each: (each[2], each[0].build.variant), reverse=True)
