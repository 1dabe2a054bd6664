"""The Dagster jobs: those of each pipeline, which all end in the ledger and what is made of it."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from accel_ci.defs.partitions import builds
from accel_ci.model import Build
from accel_ci.pipelines import REVISION, Job, Pipeline

BUILD_TAG = "accel_ci/build"
"""The run tag with the build and the pipeline that a run works on: `dagster.yaml` lets one run for each value start."""


def build_job(pipeline: Pipeline, job: Job, assets: Sequence[dg.AssetsDefinition], variants: Sequence[str]) -> Any:
    """Make a job of a pipeline over `assets`: the pipeline's, and those that follow every pipeline.

    Steps share a process: a process each would cost seconds.
    """
    partitions = builds(variants)

    def tags(key: str) -> dict[str, str]:
        dimensions = partitions.get_partition_key_from_str(key).keys_by_dimension
        return {BUILD_TAG: f"{Build(dimensions[REVISION], dimensions['variant']).name}/{pipeline.name}"}

    return dg.define_asset_job(
        job.name,
        selection=dg.AssetSelection.assets(*assets),
        description=job.description,
        executor_def=dg.in_process_executor,
        tags={"accel_ci/trigger": job.triggers[0]},
        config=dg.PartitionedConfig(
            partitions, run_config_for_partition_key_fn=lambda key: {}, tags_for_partition_key_fn=tags
        ),
    )
