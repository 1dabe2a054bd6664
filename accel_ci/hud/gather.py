"""Read the builds of the newest revisions from their manifests, in brief; those that have not changed are kept.

Nothing is decided here and nothing stops the HUD: what cannot be read is logged and shown as unreadable. What only the page
of one build needs is read by `gather_build.py`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args, get_type_hints

from accel_ci.errors import AccelCiError
from accel_ci.hud.kept import KeptBuild, signature_of
from accel_ci.hud.records import BuildRecord, BuildTests
from accel_ci.hud.speed import Times
from accel_ci.hud.stops import find_stop
from accel_ci.hud.summary import RevisionBuilds, summarise
from accel_ci.hud.text import repository_name
from accel_ci.ledger.activity import read_activity
from accel_ci.model import Build, Revision, Source, Trigger, trigger_of_key
from accel_ci.pipelines import DEVICELESS_RESULTS, EVERY_STAGE, REVISION, SMOKE_RESULTS, stages_of
from accel_ci.results.questions import bad_tests_in_brief
from accel_ci.storage.manifests import ManifestStore
from accel_ci.storage.revision_index import IndexedRevision
from accel_ci.workspace import Workspace

_LOG = logging.getLogger(__name__)

SHOWN = {name: get_args(hint)[0] for name, hint in get_type_hints(BuildRecord).items() if name in EVERY_STAGE}
"""The stages that have a field of their name in `BuildRecord`, with the types of their manifests."""

MOST_REVISIONS = 90
"""So many of the newest revisions of each trigger are shown."""


def gather_builds(
    workspace: Workspace, kept: Mapping[str, KeptBuild], now: datetime, revisions: int = MOST_REVISIONS
) -> tuple[list[RevisionBuilds], dict[str, KeptBuild]]:
    """Return the newest revisions of each trigger, newest first, and the facts to keep of their finished builds."""
    manifests = workspace.manifests.at_one_moment()
    found, facts = [], dict[str, KeptBuild]()
    for one in _newest_of_each_trigger(manifests, revisions):
        builds = []
        for build in reversed(manifests.builds_of(one.key)):
            known = _summarise(workspace, manifests, build, kept.get(build.name), now)
            builds.append(known.summary)
            facts[build.name] = known
        revision = read_or_none(manifests, manifests.path(REVISION, one.key), Revision)
        shown = _without_credentials(revision) if revision is not None else None
        found.append(RevisionBuilds(one.key, one.seen_at, shown, tuple(builds)))
    return found, facts


def _without_credentials(revision: Revision) -> Revision:
    """The revision as everybody may see it: the address of a repository can hold a password."""

    def shown(source: Source) -> Source:
        return replace(source, repository=repository_name(source.repository))

    stack = {name: shown(source) for name, source in revision.stack.items()}
    return replace(revision, backend=shown(revision.backend), upstream=shown(revision.upstream), stack=stack)


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


def _summarise(
    workspace: Workspace, manifests: ManifestStore, build: Build, kept: KeptBuild | None, now: datetime
) -> KeptBuild:
    """Sum up a build, or take what is kept of one that has finished and not changed."""
    signature = signature_of(manifests.folder(build))
    if kept is not None and kept.signature == signature and kept.summary.finished:
        return kept
    record = read_record(manifests, build)
    tests = read_failures_of_stop(workspace, record)
    summary = summarise(record, tests, _times(manifests, build), now)
    if record.activity or record.unreadable:
        signature = ""  # what a run is doing is not in the files
    if kept is None:
        return KeptBuild(signature, summary)
    return replace(kept, signature=signature, summary=summary)


def _times(manifests: ManifestStore, build: Build) -> Times:
    return Times(manifests.wall_seconds(build), queued_seconds(manifests, build))


def queued_seconds(manifests: ManifestStore, build: Build) -> float | None:
    """The seconds that the last runs of a build waited in a queue; None where that is not known."""
    runs = manifests.last_runs(build).values()
    queued = [(run.started_at - run.asked_at).total_seconds() for run in runs if run.started_at is not None]
    return sum(queued) if queued else None


def read_record(manifests: ManifestStore, build: Build) -> BuildRecord:
    """Read the manifests of a build."""
    folder = manifests.folder(build)
    changed = {stage: at for stage in stages_of(manifests.pipelines) if (at := _changed_at(folder / f"{stage}.json"))}
    values = {
        stage: read_or_none(manifests, folder / f"{stage}.json", kind) for stage, kind in SHOWN.items() if stage in changed
    }
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


def read_failures_of_stop(workspace: Workspace, record: BuildRecord) -> BuildTests | None:
    """Read the failing tests of a build that stopped in its deviceless or smoke stage; None for other builds."""
    gates = {DEVICELESS_RESULTS: record.deviceless_results, SMOKE_RESULTS: record.smoke_results}
    results = gates.get(find_stop(record).stage) if record.ledger is None else None
    if results is None:
        return None
    try:
        return BuildTests(tuple(bad_tests_in_brief(workspace.results, record.build, results.suites)))
    except AccelCiError as error:
        _LOG.warning("the attempts of %s cannot be read: %s", record.build.name, error)
        return None


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


def read_or_none(manifests: ManifestStore, path: Path, kind: type[Any]) -> Any:
    """Read a manifest; None where it cannot be read, which is logged."""
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
