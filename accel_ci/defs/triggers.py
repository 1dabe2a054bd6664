"""The two steps of every trigger (a schedule, a sensor, a person): resolve a revision once, then ask for its builds."""

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import dagster as dg

from accel_ci.config.settings import Settings
from accel_ci.defs.partitions import REVISIONS, partition_key
from accel_ci.model import Build, Revision, Trigger
from accel_ci.pipelines import REVISION, Job
from accel_ci.source.revision import resolve_revision
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace

TRIGGERED_AT = "accel_ci/triggered_at"
"""The run tag with the time at which the build was asked for; its wall time counts from there."""


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
    if not instance.has_dynamic_partition(str(REVISIONS.name), revision.key):
        instance.add_dynamic_partitions(str(REVISIONS.name), [revision.key])
        instance.report_runless_asset_event(
            dg.AssetMaterialization(
                REVISION,
                partition=revision.key,
                metadata={
                    "trigger": revision.trigger,
                    "backend": f"{revision.backend.repository} {revision.backend.ref} {revision.backend.label}",
                    "upstream": f"{revision.upstream.repository} {revision.upstream.ref}",
                    "upstream_sha": revision.upstream.sha or f"unknown: {revision.upstream.note}",
                    "manifest": dg.MetadataValue.path(str(manifests.path(REVISION, revision.key))),
                },
                tags={"dagster/data_version": f"{revision.backend.label}.{(revision.upstream.sha or 'unknown')[:12]}"},
            )
        )
    return revision


def tonights_revision(manifests: ManifestStore, now: datetime) -> Revision | None:
    """Return the newest nightly revision of a day, which all pipelines are to test; None when there is none yet."""
    return manifests.newest_revision("nightly", f"nightly-{now:%Y%m%d}")


def builds_of(settings: Settings, job: Job, revision: Revision) -> list[Build]:
    """Return the builds of a revision that a job makes."""
    return [Build(revision.key, variant) for variant in job.variants(settings)]


def run_requests(settings: Settings, job: Job, revision: Revision, run_key: str) -> Iterator[dg.RunRequest]:
    """Ask for one run for each build. Dagster starts a run with a key that was used before no second time."""
    for build in builds_of(settings, job, revision):
        yield dg.RunRequest(
            run_key=f"{run_key}:{build.variant}",
            job_name=job.name,
            partition_key=partition_key(build),
            tags={TRIGGERED_AT: datetime.now(timezone.utc).isoformat()},
        )
