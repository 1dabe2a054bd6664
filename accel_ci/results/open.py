"""Open the results store of a project: in its data folder, or in the configured bucket."""

from __future__ import annotations

from accel_ci.config.settings import Project
from accel_ci.results.store import ResultsStore
from accel_ci.storage.bucket import open_bucket
from accel_ci.storage.s3 import environment_keys


def open_results(project: Project) -> ResultsStore:
    """Open the store. Bucket credentials: `ACCEL_CI_S3_ACCESS_KEY` and `…_SECRET_KEY`, else boto3's usual sources."""
    settings = project.settings.results
    if settings.bucket is None:
        return ResultsStore(project.home / "results")
    cache = project.home / "cache" / "results"
    keys, region = environment_keys(), settings.region
    return ResultsStore(open_bucket(settings.bucket, settings.prefix, cache, settings.endpoint, keys, region))
