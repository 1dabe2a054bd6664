"""The partitions: revision × variant. Never by shard or by test."""

import warnings

import dagster as dg

from accel_ci.config.settings import Settings
from accel_ci.model import Build
from accel_ci.pipelines import REVISION


def revisions_name(location: str | None) -> str:
    """Return the name by which an instance keeps the revisions of a code location: keys of another are not among them."""
    return f"{location}/{REVISION}" if location else REVISION


def revisions(location: str | None) -> dg.DynamicPartitionsDefinition:
    """Make the partitions of the external asset `revision`."""
    return dg.DynamicPartitionsDefinition(name=revisions_name(location))


def builds(settings: Settings) -> dg.MultiPartitionsDefinition:
    """Make the partitions of everything per build."""
    variants = dg.StaticPartitionsDefinition([variant.name for variant in settings.variants])
    return dg.MultiPartitionsDefinition({REVISION: revisions(settings.location), "variant": variants})


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
