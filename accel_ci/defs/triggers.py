"""What every trigger does, be it a schedule, a sensor or a person: resolve a revision once, then ask for its builds."""

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import dagster as dg

from accel_ci.defs.jobs import RBE_JOB, job_name
from accel_ci.defs.partitions import REVISIONS, partition_key
from accel_ci.model import Build, Revision, Trigger
from accel_ci.source.revision import resolve_revision
from accel_ci.workspace import Workspace

TRIGGERED_AT = "accel_ci/triggered_at"
"""The run tag with the time at which somebody asked for the build; its wall time counts from there."""


def start_revision(instance: dg.DagsterInstance, workspace: Workspace, trigger: Trigger, **how: Any) -> Revision:
    """Resolve the SHAs, write the manifest, add the partition and report the external asset `revision`.

    `how` goes to `resolve_revision`. Raises `SourceError`.
    """
    manifests = workspace.manifests
    while True:
        wanted = resolve_revision(workspace.project, trigger, manifests.revision, **how)
        revision = manifests.add_revision(wanted)
        if revision.sources == wanted.sources:
            break  # otherwise another trigger has just taken the key for other sources
    path = manifests.path("revision", revision.key)
    if not instance.has_dynamic_partition(str(REVISIONS.name), revision.key):
        instance.add_dynamic_partitions(str(REVISIONS.name), [revision.key])
        instance.report_runless_asset_event(
            dg.AssetMaterialization(
                "revision",
                partition=revision.key,
                metadata={
                    "trigger": revision.trigger,
                    "backend": f"{revision.backend.repository} {revision.backend.ref} {revision.backend.label}",
                    "upstream": f"{revision.upstream.repository} {revision.upstream.ref}",
                    "upstream_sha": revision.upstream.sha or f"unknown: {revision.upstream.note}",
                    "manifest": dg.MetadataValue.path(str(path)),
                },
                tags={"dagster/data_version": f"{revision.backend.label}.{(revision.upstream.sha or 'unknown')[:12]}"},
            )
        )
    return revision


def tonights_revision(workspace: Workspace, now: datetime) -> Revision | None:
    """The newest nightly revision of a day, which both pipelines are to test; None when there is none yet."""
    return workspace.manifests.newest_revision("nightly", f"nightly-{now:%Y%m%d}")


def rbe_builds_of(workspace: Workspace, revision: Revision) -> list[Build]:
    """The builds whose sources Bazel builds."""
    return [Build(revision.key, variant) for variant in workspace.project.settings.variants_of_rbe()]


def builds_of(workspace: Workspace, revision: Revision) -> list[Build]:
    """The builds that the trigger of a revision asks for."""
    return [Build(revision.key, variant) for variant in workspace.project.settings.variants_of(revision.trigger)]


def run_requests(workspace: Workspace, revision: Revision, run_key: str) -> Iterator[dg.RunRequest]:
    """One run for each build. Runs with a key that was used before are not started again."""
    return _requests(builds_of(workspace, revision), job_name(revision.trigger), run_key)


def rbe_run_requests(workspace: Workspace, revision: Revision, run_key: str) -> Iterator[dg.RunRequest]:
    """The same for the source build."""
    return _requests(rbe_builds_of(workspace, revision), RBE_JOB, run_key)


def _requests(builds: list[Build], job: str, run_key: str) -> Iterator[dg.RunRequest]:
    for build in builds:
        yield dg.RunRequest(
            run_key=f"{run_key}:{build.variant}",
            job_name=job,
            partition_key=partition_key(build),
            tags={TRIGGERED_AT: datetime.now(timezone.utc).isoformat()},
        )
