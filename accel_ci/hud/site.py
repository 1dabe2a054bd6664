"""Write the HUD: all pages, the same data as JSON, the feed of incidents and the badges.

    index.html      builds.json       the builds, the newest of each trigger
    suites.html                       the same by suite
    builds-<trigger>.html             all revisions of a trigger that are shown
    builds/<revision>~<variant>.html  one build (`write_builds.py`)
    pulls.html      pulls.json        pull requests, with their failures by whose they are
                    missed.json       the failures that tests chosen by changes would have missed, where they are measured
    incidents.html  incidents.json    whose the failures are, the open ones first; incidents.atom is the feed
    flaky.html      flaky.json        flaky tests, the quarantine and what it hides
    cards.html      cards.json        the health of cards, and their failures by day
    coverage.html   coverage.json     the tests in scope, those enabled and those that pass
    speed.html      speed.json        where the wall time of builds goes
    quality.html    quality.json      the criteria of the levels, and tests that became worse
    test.html  search.html            one test, and the search of all, with the data that they load from data/
    badge-state.svg, badge-enabled.svg, badge-flaky.svg

What pages show is decided in the modules of their names and in `accel_ci.quality`; the HTML is that of `render.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from accel_ci.hud.badges import badges_of
from accel_ci.hud.cards import CardBuild, make_cards
from accel_ci.hud.data.names import A_FILE
from accel_ci.hud.data.update import HISTORY_DAYS, state_folder, update_test_data
from accel_ci.hud.feed import feed_of
from accel_ci.hud.gather import MOST_REVISIONS, gather_builds, read_or_none
from accel_ci.hud.grid import GridPage, Row, make_grid
from accel_ci.hud.kept import KeptBuild, keep, read_kept
from accel_ci.hud.pull_requests import KINDS, make_pull_requests
from accel_ci.hud.render import Site, render_page
from accel_ci.hud.speed import PARTS, make_speed
from accel_ci.hud.summary import RevisionBuilds
from accel_ci.hud.text import in_utc
from accel_ci.hud.write_builds import write_build_pages
from accel_ci.model import Build, DeviceTestResults
from accel_ci.pipelines import DEVICE_TEST_RESULTS
from accel_ci.quality.current_missed import MissReport, measures_misses, read_missed
from accel_ci.quality.current_quarantine import QuarantineState, read_quarantine
from accel_ci.quality.flakiness import Flakiness
from accel_ci.quality.incidents import Incident
from accel_ci.quality.judgement import Incidents, read_causes, read_incidents
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

CARD_DAYS = 30
"""The days that the page of cards shows."""

MOST_TIMED = 500
"""The number of builds on the page of speed."""

LISTED = 50
"""The number of tests that an incident lists in full."""

FLAKY_LISTED = 1000
"""The number of tests that the page of flaky tests lists; the JSON has all."""


def write_site(workspace: Workspace, flakiness: Flakiness, folder: Path, *, now: datetime) -> Path:
    """Write all files to `folder`, each atomically, and return the path of the first page.

    What is kept until the next time is in a folder beside it: `<folder>.state`.
    """
    now, state = in_utc(now), state_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = workspace.project.settings
    links = {"Relay": settings.relay.pages} if settings.relay and settings.relay.pages else {}
    site = Site(settings.backend.name, now, links=links)
    incidents = read_incidents(workspace)
    revisions, kept = gather_builds(workspace, read_kept(state), now)
    kept = write_build_pages(workspace, revisions, kept, incidents.incidents, folder, site, now)
    keep(state, kept)
    coverage = workspace.manifests.read_history(workspace.manifests.path(COVERAGE), CoverageReport)
    grid = make_grid(site.project, revisions, kept, coverage, now=now)
    missed = read_missed(workspace) if measures_misses(workspace) else None
    _write(folder, _grid_pages(site, grid, revisions, kept, now, missed))
    _write(folder, _quality_pages(workspace, flakiness, site, grid, revisions, kept, incidents))
    _write(folder, _test_pages(workspace, flakiness, incidents, kept, site, folder))
    return folder / "index.html"


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        write_whole_file(folder / name, redact(content).encode(errors="backslashreplace"))


def _grid_pages(
    site: Site,
    grid: GridPage,
    revisions: Sequence[RevisionBuilds],
    kept: Mapping[str, KeptBuild],
    now: datetime,
    missed: MissReport | None,
) -> dict[str, str]:
    """The first page, the same by suite, and one of each trigger."""
    pulls = make_pull_requests(revisions, kept)
    files = {
        "index.html": render_page("index.html", site, "builds.json", page=grid),
        "suites.html": render_page("suites.html", site, "builds.json", page=grid),
        "builds.json": msgspec.json.encode([_shown(row) for row in grid.rows], order="sorted").decode(),
        "pulls.html": render_page("pulls.html", site, "pulls.json", pulls=pulls, kinds=KINDS, missed=missed),
        "pulls.json": msgspec.json.encode(pulls, order="sorted").decode(),
    }
    if missed is not None:
        files["missed.json"] = msgspec.json.encode(missed, order="sorted").decode()
    for trigger in grid.counts:
        whole = make_grid(site.project, revisions, kept, now=now, triggers=(trigger,), rows=MOST_REVISIONS)
        files[f"builds-{trigger or 'unknown'}.html"] = render_page("builds.html", site, page=whole)
    return files


def _shown(row: Row) -> dict[str, Any]:
    return {"key": row.key, "trigger": row.trigger, "seen_at": row.seen_at, "commits": row.commits, "builds": row.cells}


def _test_pages(
    workspace: Workspace,
    flakiness: Flakiness,
    incidents: Incidents,
    kept: Mapping[str, KeptBuild],
    site: Site,
    folder: Path,
) -> dict[str, str]:
    """The pages on tests, after their data."""
    quarantine = read_quarantine(workspace)
    shown = {each.summary.build for each in kept.values() if each.page}
    entries = quarantine.entries if quarantine is not None else ()
    data = update_test_data(
        workspace.results, workspace.manifests, folder, flakiness, entries, incidents.incidents, shown, site.generated_at
    )
    return {
        "test.html": render_page("test.html", site, data=data, days=HISTORY_DAYS),
        "search.html": render_page("search.html", site, data=data, size=A_FILE),
    }


def _quality_pages(
    workspace: Workspace,
    flakiness: Flakiness,
    site: Site,
    grid: GridPage,
    revisions: Sequence[RevisionBuilds],
    kept: Mapping[str, KeptBuild],
    incidents: Incidents,
) -> dict[str, str]:
    manifests = workspace.manifests
    quarantine = read_quarantine(workspace) or QuarantineState(site.generated_at.date())
    report = manifests.read_history(manifests.path(REPORT), LevelReport)
    trends = manifests.read_history(manifests.path(TRENDS), Trends) or Trends()
    cards = make_cards(_card_builds(workspace, revisions))
    by_age = [summary for one in revisions for summary in one.builds]
    speed = make_speed([summary.speed for summary in by_age if summary.speed is not None][:MOST_TIMED])
    coverage = manifests.read_history(manifests.path(COVERAGE), CoverageReport) or CoverageReport()
    stages = workspace.project.settings.ramp.stages
    shares = [draw_trend(coverage.of_variant(one.build.variant), stages) for one in coverage.latest]
    is_open = [one for one in incidents.incidents if one.state != "fixed"]
    fixed = [one for one in incidents.incidents if one.state == "fixed"]
    nights = [(each.revision, each.counts) for each in incidents.nights]
    shows: dict[str, tuple[Mapping[str, Any], Any]] = {
        "incidents": (
            {"open": is_open, "fixed": fixed, "revision": incidents.revision, "listed": LISTED,
             "builds_of": lambda one: _builds_of(one, kept),
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
    files = {"incidents.atom": feed_of(incidents, site), **badges_of(grid, flakiness)}
    for name, (values, data) in shows.items():
        files[f"{name}.html"] = render_page(f"{name}.html", site, f"{name}.json", **values)
        files[f"{name}.json"] = msgspec.json.encode(data, order="sorted").decode()
    return files


def _builds_of(incident: Incident, kept: Mapping[str, KeptBuild]) -> list[Build]:
    """The builds of the last revision of an incident whose pages have it."""
    builds = [Build(incident.last, variant) for variant in sorted({variant for variant, *_ in incident.now})]
    return [build for build in builds if (known := kept.get(build.name)) and known.page and incident.id in known.incidents]


def _card_builds(workspace: Workspace, revisions: Sequence[RevisionBuilds]) -> list[CardBuild]:
    """Return what the finished builds of the last days tell of cards, the oldest first."""
    manifests, found = workspace.manifests, []
    first = max((one.seen_at for one in revisions), default=None)
    for one in sorted(revisions, key=lambda each: (each.seen_at, each.key)):
        if first is None or first - one.seen_at > timedelta(days=CARD_DAYS):
            continue
        for summary in one.builds:
            path = manifests.path(DEVICE_TEST_RESULTS, one.key, summary.build.variant)
            results = read_or_none(manifests, path, DeviceTestResults) if path.exists() else None
            causes = read_causes(workspace, summary.build)
            found.append(
                CardBuild(
                    one.seen_at.date(),
                    results.cards if results is not None else (),
                    causes.places if causes is not None else (),
                    causes.bad if causes is not None else (),
                )
            )
    return found
