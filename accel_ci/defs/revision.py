"""The external asset that every pipeline begins with."""

import dagster as dg

from accel_ci.defs.partitions import REVISIONS
from accel_ci.pipelines import REVISION
from accel_ci.workspace import Workspace


def revision_spec(workspace: Workspace) -> dg.AssetSpec:
    """Declare `revision`, which a trigger reports (`triggers.py`) and no run makes."""
    return dg.AssetSpec(
        REVISION,
        description="The exact source SHAs tested together, resolved once when the build is triggered.",
        group_name="sources",
        kinds={"git"},
        owners=list(workspace.project.settings.backend.owners),
        partitions_def=REVISIONS,
    )
