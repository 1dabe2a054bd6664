"""The external asset that both pipelines begin with."""

import dagster as dg

from accel_ci.defs.partitions import REVISIONS
from accel_ci.workspace import Workspace


def revision_spec(workspace: Workspace) -> dg.AssetSpec:
    """`revision` is reported by whoever triggers a build (`triggers.py`) and never run."""
    return dg.AssetSpec(
        "revision",
        description="The exact source SHAs tested together, resolved once by whoever triggers the build.",
        group_name="sources",
        kinds={"git"},
        owners=list(workspace.project.settings.backend.owners),
        partitions_def=REVISIONS,
    )
