"""The I/O manager: what assets return becomes a JSON manifest, and is read back as the type that the reader names."""

from typing import Any

import dagster as dg

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
        dimensions = key.keys_by_dimension if isinstance(key, dg.MultiPartitionKey) else {"revision": key}
        return self._manifests.path(name, dimensions["revision"], dimensions.get("variant"))


def produces(value_type: type) -> dg.DagsterType:
    """The type of what an asset with checks returns; Dagster reads it from the annotation of assets without checks alone."""
    return dg.PythonObjectDagsterType(value_type, name=f"{value_type.__name__}Manifest")
