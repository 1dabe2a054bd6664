"""The partitions: revision × variant. Never by shard or by test."""

import warnings
from collections.abc import Sequence

import dagster as dg

from accel_ci.model import Build
from accel_ci.pipelines import REVISION

REVISIONS = dg.DynamicPartitionsDefinition(name=REVISION)


def builds(variants: Sequence[str]) -> dg.MultiPartitionsDefinition:
    """Make the partitions of everything per build."""
    return dg.MultiPartitionsDefinition({REVISION: REVISIONS, "variant": dg.StaticPartitionsDefinition(list(variants))})


def of_revision() -> dg.AssetDep:
    """Make the dependency of an asset of a build on the external asset `revision`, which has one dimension less."""
    with warnings.catch_warnings():  # the pinned release has this class as beta; a new pin is a separate decision
        warnings.simplefilter("ignore", dg.BetaWarning)
        return dg.AssetDep(REVISION, partition_mapping=dg.MultiToSingleDimensionPartitionMapping(REVISION))


def partition_key(build: Build) -> dg.MultiPartitionKey:
    """Return the partition of a build."""
    return dg.MultiPartitionKey({REVISION: build.revision, "variant": build.variant})


def build_of(context: dg.AssetExecutionContext) -> Build:
    """Return the build that a partitioned asset runs for."""
    key = context.partition_key
    if not isinstance(key, dg.MultiPartitionKey):
        raise TypeError(f"{key!r} is not the partition of a build")
    return Build(key.keys_by_dimension[REVISION], key.keys_by_dimension["variant"])


def build_of_run(run: dg.DagsterRun) -> Build | None:
    """Return the build that a run is for; None for a run without one."""
    revision, variant = (run.tags.get(f"dagster/partition/{dimension}") for dimension in (REVISION, "variant"))
    return Build(revision, variant) if revision and variant else None
