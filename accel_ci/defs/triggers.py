"""The two steps of every trigger (a schedule, a sensor, a person): resolve a revision once, then ask for its builds."""

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import dagster as dg
from sqlalchemy.exc import IntegrityError

from accel_ci.defs.location import asset_key
from accel_ci.defs.metadata import redacted
from accel_ci.defs.partitions import partition_key, revisions_name
from accel_ci.defs.run_tags import TRIGGERED_AT
from accel_ci.errors import ConfigError
from accel_ci.model import Build, Revision, TestSelection, Trigger
from accel_ci.pipelines import REVISION, TEST_SELECTION, Job, Pipeline
from accel_ci.quality.current_confirm import next_confirmation, nothing_to_confirm, plan_reruns
from accel_ci.source.revision import confirm_key, confirming_revision, resolve_backend, resolve_revision
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace


def start_revision(instance: dg.DagsterInstance, workspace: Workspace, trigger: Trigger, **how: Any) -> Revision:
    """Resolve the SHAs, write the manifest, add the partition and report the external asset `revision`.

    `how` goes to `resolve_revision`. Raises `SourceError`.
    """
    manifests = workspace.manifests
    while True:
        wanted = resolve_revision(workspace.project, trigger, manifests.revision, **how)
        revision = manifests.add_revision(wanted)
        if revision.identity == wanted.identity:
            break  # otherwise another trigger has just taken the key for other sources
    _make_known(instance, workspace, revision)
    return revision


def start_confirmation(instance: dg.DagsterInstance, workspace: Workspace, build: Build) -> Build:
    """Make the build that is to run failures of a build again, or take the one that has not finished yet.

    Raises `AccelCiError` where there is nothing to run again, or its runtime image is not known any more.
    """
    manifests = workspace.manifests
    confirmed = manifests.revision(build.revision)
    plan = plan_reruns(workspace, build)
    number = next_confirmation(manifests, build)
    wanted = Build(confirm_key(build.revision, number), build.variant)
    has_chosen = manifests.find(TEST_SELECTION, wanted, TestSelection) is not None
    if confirmed is None or not (plan.reruns or has_chosen):
        raise nothing_to_confirm(build, plan)
    _make_known(instance, workspace, manifests.add_revision(confirming_revision(confirmed, number)))
    return wanted


def _make_known(instance: dg.DagsterInstance, workspace: Workspace, revision: Revision) -> None:
    """Add the partition of a revision and report the external asset, if a kill has not come after that."""
    location, manifests = workspace.project.settings.location, workspace.manifests
    if _add_partition(instance, revisions_name(location), revision.key):
        instance.report_runless_asset_event(
            dg.AssetMaterialization(
                asset_key(location, REVISION),
                partition=revision.key,
                metadata=redacted(
                    {
                        "trigger": revision.trigger,
                        **({"confirms": revision.confirms} if revision.confirms is not None else {}),
                        "backend": f"{revision.backend.repository} {revision.backend.ref} {revision.backend.label}",
                        "upstream": f"{revision.upstream.repository} {revision.upstream.ref}",
                        **{f"stack_{name}": f"{each.ref} {each.label}" for name, each in revision.stack.items()},
                        "upstream_sha": revision.upstream.sha or f"unknown: {revision.upstream.note}",
                        "manifest": dg.MetadataValue.path(manifests.share.location(manifests.path(REVISION, revision.key))),
                    }
                ),
                tags={"dagster/data_version": _version_of(revision)},
            )
        )


def _version_of(revision: Revision) -> str:
    parts = [revision.backend.label, (revision.upstream.sha or "unknown")[:12]]
    return ".".join([*parts, *(source.label for source in revision.stack.values())])


def _add_partition(instance: dg.DagsterInstance, partitions: str, key: str) -> bool:
    """Add the partition of a revision and return whether it is a new one.

    Dagster looks and then inserts. In SQLite that fails where another process inserts the same key in between.
    """
    if instance.has_dynamic_partition(partitions, key):
        return False
    try:
        instance.add_dynamic_partitions(partitions, [key])
    except IntegrityError:
        return False
    return True


def tonights_revision(manifests: ManifestStore, now: datetime) -> Revision | None:
    """Return the newest nightly revision of a day, which all pipelines are to test; None when there is none yet."""
    return manifests.newest_revision("nightly", f"nightly-{now:%Y%m%d}")


def choose_revision(
    instance: dg.DagsterInstance,
    workspace: Workspace,
    pipeline: Pipeline,
    trigger: Trigger,
    key: str | None = None,
    **how: Any,
) -> Revision:
    """Return the revision that a person asks for: the one with that key, else a new one; `how` goes to `resolve_revision`.

    Without a key, a pipeline that follows takes tonight's where the backend is still the same, so that the pipelines of a
    night meet in one ledger. Raises `ConfigError` when there is no such revision, `SourceError`.
    """
    manifests, project = workspace.manifests, workspace.project
    if key is not None:
        named = manifests.revision(key)
        if named is None:
            raise ConfigError(f"there is no revision {key!r}; `accel-ci run nightly` makes one")
        _make_known(instance, workspace, named)
        return named
    tonights = tonights_revision(manifests, datetime.now(timezone.utc)) if pipeline.follows else None
    if (
        tonights is not None
        and not how.get("components")
        and tonights.backend == resolve_backend(project, trigger, how.get("backend_ref"))
    ):
        return tonights
    return start_revision(instance, workspace, trigger, **how)


def asked_now() -> dict[str, str]:
    """Return the tag of a run that is asked for now."""
    return {TRIGGERED_AT: datetime.now(timezone.utc).isoformat()}


def builds_of(workspace: Workspace, job: Job, revision: Revision) -> list[Build]:
    """Return the builds of a revision that a job makes; of one that confirms failures, those of variants that have some."""
    builds = [Build(revision.key, variant) for variant in job.variants(workspace.project.settings)]
    if (confirmed := revision.confirms) is None:
        return builds
    return [each for each in builds if workspace.manifests.folder(Build(confirmed, each.variant)).is_dir()]


def run_requests(workspace: Workspace, job: Job, revision: Revision, run_key: str) -> Iterator[dg.RunRequest]:
    """Ask for one run for each build. Dagster starts a run with a key that was used before no second time."""
    for build in builds_of(workspace, job, revision):
        yield run_request(job, build, f"{run_key}:{build.variant}")


def run_request(job: Job, build: Build, run_key: str) -> dg.RunRequest:
    """Ask for the run of a build."""
    return dg.RunRequest(run_key=run_key, job_name=job.name, partition_key=partition_key(build), tags=asked_now())
