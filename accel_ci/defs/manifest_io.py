"""The I/O manager: it writes what assets return as JSON manifests, and reads them as the type that the reader names."""

from functools import cache
from typing import Any

import dagster as dg

from accel_ci.pipelines import REVISION
from accel_ci.storage.manifests import ManifestStore


class ManifestIOManager(dg.IOManager):
    """Manifests by asset and partition."""

    def __init__(self, manifests: ManifestStore) -> None:
        self._manifests = manifests

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Write the manifest of the asset."""
        if obj is not None:
            path = self._path(context)
            self._manifests.write(path, obj)
            context.add_output_metadata({"manifest": dg.MetadataValue.path(str(path))})

    def load_input(self, context: dg.InputContext) -> Any:
        """Read the manifest of an upstream asset as the type of the asset's parameter."""
        return self._manifests.read(self._path(context), context.dagster_type.typing_type)

    def _path(self, context: dg.OutputContext | dg.InputContext) -> Any:
        name = context.asset_key.path[-1]
        if not context.has_asset_partitions:
            return self._manifests.path(name)
        key = context.asset_partition_key
        dimensions = key.keys_by_dimension if isinstance(key, dg.MultiPartitionKey) else {REVISION: key}
        return self._manifests.path(name, dimensions[REVISION], dimensions.get("variant"))


@cache
def produces(value_type: type) -> dg.DagsterType:
    """Return Dagster's type of a manifest: it reads no annotation of an asset with checks, and wants each name once."""
    return dg.PythonObjectDagsterType(value_type, name=f"{value_type.__name__}Manifest")
