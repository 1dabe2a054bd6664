"""Read the HUD's data from disk: manifests of the newest revisions, and the verdicts of the builds shown in full.

Nothing is decided here and nothing stops the page: what cannot be read is logged and shown as unreadable.
"""

from __future__ import annotations

import logging
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args, get_type_hints

from accel_ci.errors import AccelCiError
from accel_ci.hud import page
from accel_ci.hud.records import BuildRecord, BuildTests, RevisionRecord
from accel_ci.hud.stops import find_stop
from accel_ci.ledger.activity import read_activity
from accel_ci.ledger.comparison import finished_before
from accel_ci.model import BAD_VERDICTS, Build, Revision, Trigger, trigger_of_key
from accel_ci.pipelines import REVISION, SMOKE_RESULTS, STAGES, stages_of
from accel_ci.quality.flakiness import Flakiness
from accel_ci.ramp.coverage import CoverageReport
from accel_ci.ramp.current import COVERAGE
from accel_ci.results.questions import bad_tests, bad_tests_in_brief, newly_failing
from accel_ci.results.store import ResultsStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci.storage.revision_index import IndexedRevision
from accel_ci.workspace import Workspace

_LOG = logging.getLogger(__name__)

SHOWN = {name: get_args(hint)[0] for name, hint in get_type_hints(BuildRecord).items() if name in STAGES}
"""The stages that have a field of their name in `BuildRecord`, with the types of their manifests."""


def gather(
    workspace: Workspace, flakiness: Flakiness, *, now: datetime, revisions: int = 30, listed: int = 50, named: int = 3
) -> page.HudPage:
    """Make the page from what the stores have.

    The grid shows the newest `revisions` of each trigger. A list of tests or cards shows `listed` of them in full. Failing
    tests are named for the builds that are shown in full, and for `named` earlier ones of each trigger and variant.
    """
    manifests, results = workspace.manifests.at_one_moment(), workspace.results
    records = [_read_revision(manifests, one) for one in _newest_of_each_trigger(manifests, revisions)]
    if records:
        results = results.around(min(record.seen_at for record in records).date())
    full = {record.build for record in page.latest_builds(records)}
    seen: Counter[tuple[Trigger | None, str]] = Counter()
    tests = {}
    for revision in records:
        for record in revision.builds:
            in_full, kind = record.build in full, (revision.trigger, record.build.variant)
            suites = _suites_to_read(record, in_full)
            seen[kind] += not in_full
            found = _read_tests(manifests, results, record, suites, full=in_full) if suites and seen[kind] <= named else None
            if found:
                tests[record.build] = found
    settings, coverage = workspace.project.settings, manifests.read_history(manifests.path(COVERAGE), CoverageReport)
    return page.make_page(
        settings.backend.name, records, tests, flakiness, coverage, settings.ramp.stages, now=now, listed=listed
    )


def _newest_of_each_trigger(manifests: ManifestStore, count: int) -> list[IndexedRevision]:
    """The newest `count` resolved revisions of each trigger, so that no trigger crowds out another."""
    seen: Counter[Trigger | None] = Counter()
    chosen = []
    for one in manifests.revisions():
        trigger = one.trigger or trigger_of_key(one.key)
        if seen[trigger] < count and manifests.has_revision(one.key):
            seen[trigger] += 1
            chosen.append(one)
    return chosen


def _suites_to_read(record: BuildRecord, full: bool) -> tuple[str, ...]:
    """The suites whose tests the page names: all of a build that is shown in full, else those with a bad test."""
    if record.ledger:
        bad = any(record.ledger.counts.get(verdict, 0) for verdict in BAD_VERDICTS)
        return tuple(record.ledger.suites) if full or bad else ()
    return record.smoke_results.suites if record.smoke_results and find_stop(record).stage == SMOKE_RESULTS else ()


def _read_revision(manifests: ManifestStore, one: IndexedRevision) -> RevisionRecord:
    builds = tuple(_read_build(manifests, build) for build in reversed(manifests.builds_of(one.key)))
    return RevisionRecord(one.key, one.seen_at, _read(manifests, manifests.path(REVISION, one.key), Revision), builds)


def _read_build(manifests: ManifestStore, build: Build) -> BuildRecord:
    folder = manifests.folder(build)
    changed = {stage: at for stage in stages_of(manifests.pipelines) if (at := _changed_at(folder / f"{stage}.json"))}
    values = {stage: _read(manifests, folder / f"{stage}.json", kind) for stage, kind in SHOWN.items() if stage in changed}
    return BuildRecord(
        build,
        present=tuple(changed),
        unreadable=tuple(stage for stage, value in values.items() if value is None),
        changed_at=max(changed.values(), default=_changed_at(folder)),
        begun=manifests.begun(build),
        activity=_read_activity(manifests, build),
        failures=_read_failures(manifests, build),
        **values,
    )


def _read_failures(manifests: ManifestStore, build: Build) -> dict[str, str]:
    """The messages of failed stages; most builds have none, which one look at the folder shows."""
    if not any(path.name.startswith(".failed-") for path in manifests.folder(build).iterdir()):
        return {}
    return {stage: text for stage in stages_of(manifests.pipelines) if (text := manifests.failure(stage, build))}


def _read_activity(manifests: ManifestStore, build: Build) -> dict[str, str]:
    try:
        return read_activity(manifests, build)
    except AccelCiError as error:
        _LOG.warning("unreadable: %s", error)
        return {}


def _read_tests(
    manifests: ManifestStore, results: ResultsStore, record: BuildRecord, suites: tuple[str, ...], *, full: bool
) -> BuildTests | None:
    try:
        if not full:
            return BuildTests(tuple(bad_tests_in_brief(results, record.build, suites)))
        verdicts = tuple(bad_tests(results, record.build, suites, page.SLOWEST))
    except AccelCiError as error:
        _LOG.warning("the attempts of %s cannot be read: %s", record.build.name, error)
        return None
    try:
        if record.ledger and (before := finished_before(manifests, record.ledger)):
            changes = newly_failing(results, before.build, record.build)
            new = frozenset((change.suite, change.test) for change in changes if change.suite in suites)
            return BuildTests(verdicts, new, before.build.revision)
    except AccelCiError as error:
        _LOG.warning("%s cannot be compared with the build before: %s", record.build.name, error)
    return BuildTests(verdicts)


def _read(manifests: ManifestStore, path: Path, kind: type[Any]) -> Any:
    try:
        return manifests.read(path, kind)
    except AccelCiError as error:
        _LOG.warning("unreadable: %s", error)
        return None


def _changed_at(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    except OSError:
        return None
