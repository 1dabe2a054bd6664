"""The part of a Dagster instance that belongs to one code location, where several projects share the instance.

The setting `location` names it; without one, all names are as short as they are on an instance of one project. Partitions
are in `accel_ci.defs.partitions`. Manifests, results and locks are in the data folder, which each project has to itself.
"""

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from accel_ci.defs.run_tags import LOCATION_TAG

_BATCH = 100


def asset_key(location: str | None, name: str) -> dg.AssetKey:
    """Return the key of an asset: its name, below that of the location."""
    return dg.AssetKey([location, name] if location else [name])


def in_location(
    location: str | None, assets: Sequence[dg.AssetsDefinition | dg.AssetSpec]
) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """Put all assets of a project, with their checks and what they depend on, below its location. Steps keep their names."""
    if location is None:
        return list(assets)
    moved = {each.key: asset_key(location, each.key.path[-1]) for each in assets}
    return [
        each.replace_attributes(key=moved[each.key])
        if isinstance(each, dg.AssetSpec)
        else each.with_attributes(asset_key_replacements=moved)
        for each in assets
    ]


def location_tags(location: str | None) -> dict[str, str]:
    """Return the tags that all jobs of a location give their runs."""
    return {LOCATION_TAG: location} if location else {}


def is_of(run: dg.DagsterRun, location: str | None) -> bool:
    """Return whether a run belongs to a location.

    A run of single assets, which a person starts in the UI, has no tags of a job, but the origin of its location. It counts
    for a project without a location too, which does not know the name that Dagster has for it.
    """
    if location is None:
        return LOCATION_TAG not in run.tags
    origin = run.remote_job_origin
    return run.tags.get(LOCATION_TAG, origin.location_name if origin else None) == location


def runs_of(
    instance: dg.DagsterInstance,
    location: str | None,
    *,
    job: str | None = None,
    statuses: Sequence[dg.DagsterRunStatus] = (),
    tags: Mapping[str, str] | None = None,
) -> Iterator[dg.RunRecord]:
    """Yield the runs of a location, of a job or of all, newest first. Only as many as are taken are read.

    With `tags`, they have all of these.
    """
    of_job = location_tags(location) if job else {}  # jobs tag their runs, so that the database can choose them
    wanted = dg.RunsFilter(job_name=job, statuses=list(statuses), tags={**of_job, **(tags or {})})
    cursor = None
    while batch := instance.get_run_records(wanted, limit=_BATCH, cursor=cursor):
        yield from (record for record in batch if is_of(record.dagster_run, location))
        cursor = batch[-1].dagster_run.run_id
