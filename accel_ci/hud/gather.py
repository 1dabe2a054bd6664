"""Read the HUD's data from disk: manifests of the newest revisions, and the verdicts of the builds shown in full.

Nothing is decided here and nothing stops the page: what cannot be read is logged and shown as unreadable.
"""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from accel_ci.errors import AccelCiError
from accel_ci.hud.page import (
    SLOWEST,
    BuildRecord,
    BuildTests,
    HudPage,
    RevisionRecord,
    finished_before,
    latest_builds,
    make_page,
)
from accel_ci.model import (
    BazelTestResults,
    Build,
    DeviceTestResults,
    Ledger,
    Revision,
    RuntimeImage,
    SourceBuild,
    TestSelection,
    Wheel,
)
from accel_ci.pipelines import REVISION, stages_of
from accel_ci.quality.flakiness import Flakiness
from accel_ci.results.questions import bad_tests, newly_failing
from accel_ci.results.store import ResultsStore
from accel_ci.storage.manifests import ManifestStore, begun_pipelines

_LOG = logging.getLogger(__name__)
_SHOWN: dict[str, type[Any]] = {
    "wheel": Wheel,
    "runtime_image": RuntimeImage,
    "smoke_results": DeviceTestResults,
    "test_selection": TestSelection,
    "device_test_results": DeviceTestResults,
    "source_build": SourceBuild,
    "bazel_test_results": BazelTestResults,
    "ledger": Ledger,
}
"""The stages that have a field of their name in `BuildRecord`."""


def gather(
    manifests: ManifestStore,
    results: ResultsStore,
    project_name: str,
    flakiness: Flakiness,
    *,
    now: datetime,
    revisions: int = 30,
    listed: int = 50,
) -> HudPage:
    """Make the page from what the stores have.

    Args:
        manifests: The manifests of revisions and builds.
        results: The attempts of the builds.
        project_name: The backend's name.
        flakiness: The flaky tests to list.
        now: When the page is made.
        revisions: How many revisions the grid shows, newest first.
        listed: How many tests or cards a list shows before it counts the rest.
    """
    records = [
        RevisionRecord(
            one.key,
            one.seen_at,
            _read(manifests, manifests.path(REVISION, one.key), Revision),
            _read_builds(manifests, one.key),
        )
        for one in manifests.revisions()[:revisions]
    ]
    if records:
        results = results.around(min(record.seen_at for record in records).date())
    tests = {
        record.build: found
        for record in latest_builds(records)
        if record.ledger is not None
        and (found := _read_tests(results, record.ledger, finished_before(records, record.build))) is not None
    }
    return make_page(project_name, records, tests, flakiness, now=now, listed=listed)


def _read_builds(manifests: ManifestStore, revision: str) -> tuple[BuildRecord, ...]:
    return tuple(_read_build(manifests, build) for build in reversed(manifests.builds_of(revision)))


def _read_build(manifests: ManifestStore, build: Build) -> BuildRecord:
    folder = manifests.builds / build.revision / build.variant
    changed = {stage: at for stage in stages_of(manifests.pipelines) if (at := _changed_at(folder / f"{stage}.json"))}
    values = {stage: _read(manifests, folder / f"{stage}.json", kind) for stage, kind in _SHOWN.items() if stage in changed}
    return BuildRecord(
        build,
        present=tuple(changed),
        unreadable=tuple(stage for stage, value in values.items() if value is None),
        changed_at=max(changed.values(), default=_changed_at(folder)),
        begun=begun_pipelines(folder, manifests.pipelines),
        **values,
    )


def _read_tests(results: ResultsStore, ledger: Ledger, before: BuildRecord | None) -> BuildTests | None:
    try:
        verdicts = tuple(bad_tests(results, ledger.build, ledger.suites, SLOWEST))
    except AccelCiError as error:
        _LOG.warning("the attempts of %s cannot be read: %s", ledger.build.name, error)
        return None
    try:
        changes = newly_failing(results, before.build, ledger.build) if before else None
    except AccelCiError as error:
        _LOG.warning("%s cannot be compared with the build before: %s", ledger.build.name, error)
        changes = None
    new = None if changes is None else frozenset((change.suite, change.test) for change in changes)
    return BuildTests(verdicts, new)


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
