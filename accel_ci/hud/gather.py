"""Reads what lies on disk for the HUD: manifests of revisions and builds, and the verdicts of the builds shown in full.

Nothing is decided here and nothing stops the page: what cannot be read is logged and shown as unreadable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
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
from accel_ci.hud.text import in_utc
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
from accel_ci.quality.flakiness import Flakiness
from accel_ci.results.questions import bad_tests, newly_failing
from accel_ci.results.store import ResultsStore
from accel_ci.storage.manifests import STAGES, ManifestStore, begun_pipelines

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


def gather(
    home: Path,
    results: ResultsStore,
    project_name: str,
    flakiness: Flakiness,
    *,
    now: datetime,
    revisions: int = 30,
    listed: int = 50,
) -> HudPage:
    """The page of what lies in the data folder `home`.

    Args:
        home: The data folder, with `builds/`.
        results: The attempts of the builds.
        project_name: The backend's name.
        flakiness: The flaky tests to list.
        now: When the page is made.
        revisions: How many revisions the grid shows, newest first.
        listed: How many tests or cards a list shows before it counts the rest.
    """
    manifests = ManifestStore(home)
    records = [
        RevisionRecord(folder.name, seen_at, revision, tuple(_read_builds(manifests, folder)))
        for seen_at, folder, revision in _read_revisions(manifests)[:revisions]
    ]
    tests = {
        record.build: found
        for record in latest_builds(records)
        if record.ledger is not None
        and (found := _read_tests(results, record.ledger, finished_before(records, record.build))) is not None
    }
    return make_page(project_name, records, tests, flakiness, now=now, listed=listed)


def _read_revisions(manifests: ManifestStore) -> list[tuple[datetime, Path, Revision | None]]:
    found = []
    for folder in _folders(manifests.builds):
        path = folder / "revision.json"
        revision = _read(manifests, path, Revision)
        found.append((in_utc(revision.created_at) if revision else _changed_at([path, folder]), folder, revision))
    return sorted(found, key=lambda one: (one[0], one[1].name), reverse=True)


def _read_builds(manifests: ManifestStore, revision: Path) -> Iterable[BuildRecord]:
    for folder in _folders(revision):
        paths = {stage: folder / f"{stage}.json" for stage in STAGES if (folder / f"{stage}.json").exists()}
        values = {stage: _read(manifests, paths[stage], kind) for stage, kind in _SHOWN.items() if stage in paths}
        yield BuildRecord(
            Build(revision.name, folder.name),
            present=tuple(paths),
            unreadable=tuple(stage for stage, value in values.items() if value is None),
            changed_at=_changed_at(paths.values() or [folder]),
            begun=begun_pipelines(folder),
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


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))


def _changed_at(paths: Iterable[Path]) -> datetime:
    seconds = [path.stat().st_mtime for path in paths if path.exists()]
    return datetime.fromtimestamp(max(seconds, default=0.0), timezone.utc)
