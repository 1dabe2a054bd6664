"""Write the pages of builds, each only when something that it shows has changed.

builds/<revision>~<variant>.html    one build; builds/<revision>~<variant>.json has the same as data
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from accel_ci.hud.addresses import build_address
from accel_ci.hud.build_page import BuildPage, make_build_page
from accel_ci.hud.changes import counts_of
from accel_ci.hud.gather_build import Failures, gather_build
from accel_ci.hud.kept import KeptBuild
from accel_ci.hud.render import Site, render_page, templates_stamp
from accel_ci.hud.serve import artifact_address
from accel_ci.hud.summary import BuildSummary, RevisionBuilds
from accel_ci.model import Artifact
from accel_ci.quality.incidents import Incident
from accel_ci.quality.judgement import causes_file
from accel_ci.redaction import redact
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.dev_file import DevAddresses
from accel_ci.workspace import Workspace

PAGE_DAYS = 30
"""Builds of so many days have a page, and the newest of each trigger. Older ones are in the history of each test."""

MOST_TESTS = 1_500_000
"""The pages written at a time are of builds with so many tests in all; the rest follows the next time."""

LISTED = 50
"""A list names so many tests; the JSON has all."""


def write_build_pages(
    workspace: Workspace,
    revisions: Sequence[RevisionBuilds],
    kept: Mapping[str, KeptBuild],
    incidents: Sequence[Incident],
    folder: Path,
    site: Site,
    now: datetime,
) -> dict[str, KeptBuild]:
    """Write the pages that are missing or out of date, those of the newest builds first, and return what is known then."""
    known, left = dict(kept), MOST_TESTS
    places = {one.key: one.seen_at for one in revisions}
    servers = workspace.addresses
    (folder / "builds").mkdir(parents=True, exist_ok=True)
    newest = {one.trigger: one.key for one in reversed(revisions)}.values()
    wanted = [one for one in revisions if one.key in newest or now - one.seen_at <= timedelta(days=PAGE_DAYS)]
    failures = Failures(workspace.results.at_one_moment())
    names = {summary.build.name for one in wanted for summary in one.builds}
    for own in sorted(wanted, key=lambda one: one.seen_at, reverse=True):
        of_revision = [one for one in incidents if _is_in(one, own, places)]
        for summary in own.builds:
            facts = known[summary.build.name]
            stamp = _stamp(workspace, summary, facts, of_revision, servers)
            if facts.page == stamp and (folder / build_address(summary.build)).exists():
                continue
            if left <= 0:
                known[summary.build.name] = replace(facts, page="")
                continue
            left -= max(1, sum(summary.counts.values()))
            page = make_build_page(gather_build(workspace, failures, revisions, own, summary), of_revision, now)
            _write(folder, site, page, names, servers)
            known[summary.build.name] = _known_of(page, facts, stamp)
    _remove_others(folder, {build_address(summary.build) for one in wanted for summary in one.builds})
    return known


def _known_of(page: BuildPage, facts: KeptBuild, stamp: str) -> KeptBuild:
    """Add what the page of a build found out to its facts."""
    blamed = {str(kind): count for kind, count in page.blamed.items()}
    incidents = tuple(one.id for one in page.incidents if one.id is not None)
    changes = counts_of(page.changes) if page.changes else None
    return replace(facts, page=stamp, changes=changes, blamed=blamed, incidents=incidents)


def _is_in(incident: Incident, own: RevisionBuilds, places: Mapping[str, datetime]) -> bool:
    """Return whether an incident was seen from before a revision until after it, or in it."""
    first, last = places.get(incident.first), places.get(incident.last)
    return (first is None or first <= own.seen_at) and last is not None and own.seen_at <= last


def _stamp(
    workspace: Workspace,
    summary: BuildSummary,
    facts: KeptBuild,
    incidents: Sequence[Incident],
    servers: DevAddresses | None,
) -> str:
    """A digest of all that the page of a build shows."""
    causes = causes_file(workspace, summary.build)
    judged = causes.stat().st_mtime_ns if causes.exists() else None
    variant = summary.build.variant
    concerned = [
        (one.id, one.title, one.owner) for one in incidents if any(key[0] == variant for key in one.tests)
    ]  # fmt: skip
    shown = (templates_stamp(), facts.signature, summary.state, judged, concerned, servers and (servers.ui, servers.hud))
    return hashlib.sha256(repr(shown).encode()).hexdigest()[:16]


def _write(folder: Path, site: Site, page: BuildPage, with_page: Collection[str], servers: DevAddresses | None) -> None:
    file = folder / build_address(page.record.build)
    values: dict[str, Any] = {
        "b": page,
        "listed": LISTED,
        "before_address": build_address(page.before) if page.before and page.before.name in with_page else None,
        "run_address": lambda run: f"{servers.ui}/runs/{run}" if servers else None,
        "artifact_address": lambda artifact: _address_of(artifact, servers),
    }
    json = file.with_suffix(".json")
    files = {
        json: msgspec.json.encode(_data_of(page), order="sorted").decode(),
        file: render_page("build.html", site, json.name, root="../", **values),
    }
    for path, content in files.items():
        write_whole_file(path, redact(content).encode(errors="backslashreplace"))


def _address_of(artifact: Artifact, servers: DevAddresses | None) -> str | None:
    return artifact_address(servers.artifacts, artifact) if servers else None


def _data_of(page: BuildPage) -> dict[str, Any]:
    """The page as data: what it shows, with all tests of its lists."""
    record = page.record
    return {
        "build": record.build,
        "revision": page.revision,
        "trigger": page.trigger,
        "state": page.state,
        "ledger": record.ledger,
        "changes": page.changes,
        "incidents": page.incidents,
        "failures_by_kind": page.blamed,
        "groups": page.groups,
        "slowest": page.slowest,
        "cards": page.cards,
        "timeline": page.timeline,
        "before": page.before,
        "speed": page.speed,
        "queue_s": page.queue_s,
        "runs": page.runs,
        "wheel": record.wheel,
        "runtime_image": record.runtime_image,
        "test_selection": record.test_selection,
    }


def _remove_others(folder: Path, addresses: Collection[str]) -> None:
    """Remove the pages of builds that are gone, or too old."""
    for path in (folder / "builds").glob("*.html"):
        if f"builds/{path.name}" not in addresses:
            path.unlink()
            path.with_suffix(".json").unlink(missing_ok=True)
