"""Read the HUD's data from disk: manifests of the newest revisions, and the verdicts of the builds shown in full.

Nothing is decided here and nothing stops the page: what cannot be read is logged and shown as unreadable.
"""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args, get_type_hints

from accel_ci.errors import AccelCiError
from accel_ci.hud import page
from accel_ci.ledger.activity import read_activity
from accel_ci.model import Build, Ledger, Revision
from accel_ci.pipelines import REVISION, STAGES, stages_of
from accel_ci.quality.flakiness import Flakiness
from accel_ci.results.questions import bad_tests, newly_failing
from accel_ci.results.store import ResultsStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci.storage.revision_index import IndexedRevision
from accel_ci.workspace import Workspace

_LOG = logging.getLogger(__name__)

_SHOWN = {name: get_args(hint)[0] for name, hint in get_type_hints(page.BuildRecord).items() if name in STAGES}
"""The stages that have a field of their name in `BuildRecord`, with the types of their manifests."""


def gather(
    workspace: Workspace, flakiness: Flakiness, *, now: datetime, revisions: int = 30, listed: int = 50
) -> page.HudPage:
    """Make the page from what the stores have.

    The grid shows the newest `revisions`. A list of tests or cards shows `listed` of them and counts the rest.
    """
    manifests, results = workspace.manifests, workspace.results
    resolved = [one for one in manifests.revisions() if manifests.has_revision(one.key)]
    records = [_read_revision(manifests, one) for one in resolved[:revisions]]
    if records:
        results = results.around(min(record.seen_at for record in records).date())
    tests = {
        record.build: found
        for record in page.latest_builds(records)
        if record.ledger and (found := _read_tests(results, record.ledger, page.finished_before(records, record.build)))
    }
    return page.make_page(workspace.project.settings.backend.name, records, tests, flakiness, now=now, listed=listed)


def _read_revision(manifests: ManifestStore, one: IndexedRevision) -> page.RevisionRecord:
    builds = tuple(_read_build(manifests, build) for build in reversed(manifests.builds_of(one.key)))
    return page.RevisionRecord(one.key, one.seen_at, _read(manifests, manifests.path(REVISION, one.key), Revision), builds)


def _read_build(manifests: ManifestStore, build: Build) -> page.BuildRecord:
    folder = manifests.folder(build)
    changed = {stage: at for stage in stages_of(manifests.pipelines) if (at := _changed_at(folder / f"{stage}.json"))}
    values = {stage: _read(manifests, folder / f"{stage}.json", kind) for stage, kind in _SHOWN.items() if stage in changed}
    return page.BuildRecord(
        build,
        present=tuple(changed),
        unreadable=tuple(stage for stage, value in values.items() if value is None),
        changed_at=max(changed.values(), default=_changed_at(folder)),
        begun=manifests.begun(build),
        activity=_read_activity(manifests, build),
        **values,
    )


def _read_activity(manifests: ManifestStore, build: Build) -> dict[str, str]:
    try:
        return read_activity(manifests, build)
    except AccelCiError as error:
        _LOG.warning("unreadable: %s", error)
        return {}


def _read_tests(results: ResultsStore, ledger: Ledger, before: page.BuildRecord | None) -> page.BuildTests | None:
    try:
        verdicts = tuple(bad_tests(results, ledger.build, ledger.suites, page.SLOWEST))
    except AccelCiError as error:
        _LOG.warning("the attempts of %s cannot be read: %s", ledger.build.name, error)
        return None
    new = None
    try:
        if before:
            new = frozenset((change.suite, change.test) for change in newly_failing(results, before.build, ledger.build))
    except AccelCiError as error:
        _LOG.warning("%s cannot be compared with the build before: %s", ledger.build.name, error)
    return page.BuildTests(verdicts, new)


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
