"""The creation of runs by our own code: those of the command line, and those that the job `start` asks for.

A run gets the origin of the workspace that `accel-ci dev` serves. Without one, the UI would list it on no job's page and
could not execute it again.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import as_file, files
from typing import Any

import dagster as dg
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.remote_origin import ManagedGrpcPythonEnvCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.workspace.load import location_origins_from_yaml_paths

from accel_ci.defs.location import asset_key
from accel_ci.defs.partitions import partition_key
from accel_ci.model import Build


def create_run(
    instance: dg.DagsterInstance,
    location: str | None,
    job: dg.JobDefinition,
    build: Build,
    tags: Mapping[str, str],
    *,
    run_config: Mapping[str, Any] | None = None,
    run_id: str | None = None,
    assets: Sequence[str] = (),
    asked_by: dg.DagsterRun | None = None,
) -> dg.DagsterRun:
    """Create a run of a location's job for a build, which nothing has started yet.

    It gets the origin of the run that asks for it. With `assets`, it makes only these.
    """
    origin, code = (asked_by.remote_job_origin, asked_by.job_code_origin) if asked_by else (None, None)
    repository = origin.repository_origin if origin else _own_repository(location)
    of_build = job.get_tags_for_partition_key(partition_key(build), None)
    return instance.create_run_for_job(
        job,
        run_id=run_id,
        run_config=run_config,
        asset_selection={asset_key(location, name) for name in assets} or None,
        tags={**job.run_tags, **of_build, **tags},
        remote_job_origin=RemoteJobOrigin(repository, job.name),
        job_code_origin=code._replace(job_name=job.name) if code else None,
    )


@cache
def _own_repository(location: str | None) -> RemoteRepositoryOrigin:
    """Return the origin of our definitions in the workspace file of `accel-ci dev`."""
    with as_file(files("accel_ci") / "workspace.yaml") as file:
        [origin] = location_origins_from_yaml_paths([str(file)])
    if location:
        origin = ManagedGrpcPythonEnvCodeLocationOrigin(origin.loadable_target_origin, location)
    return RemoteRepositoryOrigin(origin, SINGLETON_REPOSITORY_NAME)
