"""Remove builds by the keep rules, and then everything that no kept build needs.

`rules.py` decides which builds stay, `unreferenced.py` finds what nothing refers to any more, `disk.py` removes. The
attempts in the results store are never touched. Everything is checked again under its lock just before it goes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from accel_ci.config.settings import Retention
from accel_ci.errors import AccelCiError
from accel_ci.ledger.status import shortcomings
from accel_ci.model import Build, Ledger
from accel_ci.pipelines import LEDGER, stages_of
from accel_ci.retention.disk import Pruned, Remover, size_of
from accel_ci.retention.rules import BuildFacts, Extent, RevisionFacts, keeps_all, kept_builds
from accel_ci.retention.unreferenced import take_unreferenced
from accel_ci.storage.manifests import ASKED_AGAIN, ManifestStore
from accel_ci.storage.revision_index import IndexedRevision
from accel_ci.workspace import Workspace

_LOG = logging.getLogger(__name__)

RELEASE = "release.json"
"""A file that marks a build, or all builds of a revision, as released: they are kept."""


@dataclass(frozen=True)
class RevisionRegister:
    """Dagster's part: the revisions with unfinished runs (`busy`), and deleting a partition key (`forget`)."""

    busy: Callable[[], Collection[str]]
    forget: Callable[[str], None]


def prune(workspace: Workspace, register: RevisionRegister, now: datetime, *, dry_run: bool = False) -> list[Pruned]:
    """Remove everything that the keep rules do not hold, and return the list; with `dry_run`, only return it.

    Raises `AccelCiError` when another `prune` is running, or a manifest that may refer to artifacts cannot be read.
    """
    home = workspace.project.home
    if not home.is_dir():
        return []
    remover = Remover(home, now.timestamp(), dry_run=dry_run)
    with Remover(home, now.timestamp(), dry_run=False).free([home / ".prune.lock"]) as alone:
        if not alone:
            raise AccelCiError("another `prune` of this data folder is running; wait until it has ended")
        remover.take_leftovers()
        extents = _take_builds(workspace, register, remover, now)
        try:
            take_unreferenced(workspace, remover, extents)
        finally:
            remover.empty()
    return remover.account


def _take_builds(
    workspace: Workspace, register: RevisionRegister, remover: Remover, now: datetime
) -> dict[Build, Extent | None]:
    """Take the builds that go. Returns how much of each build stays, None for one that is gone."""
    manifests, settings = workspace.manifests, workspace.project.settings
    rules = settings.retention or Retention()
    own = set(remover.folders("builds"))  # not what is behind a symbolic link
    revisions = [_read_facts(manifests, one, remover) for one in manifests.revisions() if one.key in own]
    busy = register.busy()  # as late as can be
    revisions = [replace(one, in_use=one.in_use or one.key in busy) for one in revisions]
    kept = kept_builds(revisions, rules, settings.quality.window_days, now)
    extents: dict[Build, Extent | None] = {}
    for revision in revisions:
        for facts in revision.builds:
            keep = kept.get(facts.build)
            extents[facts.build] = keep if keep == "whole" else _take_build(manifests, facts.build, keep, remover)
        if not keeps_all(revision, rules, now) and not any(extents[facts.build] for facts in revision.builds):
            _take_revision(manifests, register, revision.key, remover)
    for key in remover.folders("runs"):
        if not (manifests.builds / key).exists() and remover.unused(remover.home / "runs" / key):
            remover.take("rounds", remover.home / "runs" / key)
    return extents


def _read_facts(manifests: ManifestStore, one: IndexedRevision, remover: Remover) -> RevisionFacts:
    builds = tuple(_read_build_facts(manifests, build) for build in manifests.builds_of(one.key))
    released, in_use = (manifests.builds / one.key / RELEASE).exists(), _asked_again(manifests, one.key, remover)
    return RevisionFacts(one.key, one.trigger, one.seen_at, builds, released, in_use)


def _asked_again(manifests: ManifestStore, key: str, remover: Remover) -> bool:
    """True if a trigger asked for a known revision in the last day, so that its run may not have begun."""
    asked = manifests.builds / key / ASKED_AGAIN
    return asked.exists() and not remover.unused(asked)


def _read_build_facts(manifests: ManifestStore, build: Build) -> BuildFacts:
    folder = manifests.folder(build)
    try:
        ledger = manifests.find(LEDGER, build, Ledger)
    except AccelCiError as error:
        _LOG.warning("unreadable, so not green: %s", error)
        ledger = None
    stages = frozenset(stage for stage in stages_of(manifests.pipelines) if (folder / f"{stage}.json").exists())
    return BuildFacts(build, stages, ledger is not None and not shortcomings(ledger), (folder / RELEASE).exists())


def _take_build(manifests: ManifestStore, build: Build, keep: Extent | None, remover: Remover) -> Extent | None:
    """Take a build, or only its rounds if its results are kept. Returns what stays: the whole build if a run has it."""
    lock_files = [manifests.pipeline_lock_file(pipeline, build) for pipeline in manifests.pipelines]
    with remover.free(lock_files) as free:
        if not free:
            _LOG.info("a run has %s, so it is kept", build.name)
            return "whole"
        remover.take("rounds", remover.home / "runs" / build.revision / build.variant)
        return keep if keep is not None or remover.take("build", manifests.folder(build)) else "whole"


def _take_revision(manifests: ManifestStore, register: RevisionRegister, key: str, remover: Remover) -> None:
    """Take a revision without builds. Its partition key goes first: after a kill, the folder shows that work is left."""
    folder = manifests.builds / key
    size = sum(size_of(Path(entry.path)) for entry in remover.entries("builds", key) if not entry.is_dir())
    if remover.dry_run:
        remover.take("revision", folder, size)
        return
    with manifests.revisions_lock():
        if manifests.builds_of(key) or _asked_again(manifests, key, remover):
            return
        try:
            register.forget(key)
        except Exception as error:  # whatever the driver of the database raises
            remover.record(Pruned("revision", f"builds/{key}", 0, f"its partition key stays: {error}"))
            return
        remover.take("revision", folder, size)
    with contextlib.suppress(OSError):  # not empty, or not there
        (remover.home / "runs" / key).rmdir()
