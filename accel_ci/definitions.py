"""What Dagster loads: the definitions of the project whose `accel_ci.yaml` lies here or is named by `$ACCEL_CI_CONFIG`."""

import dagster as dg

from accel_ci.config.loading import load_project
from accel_ci.defs.assembly import build_definitions


@dg.definitions
def defs() -> dg.Definitions:
    """The entry point that `pyproject.toml` and `workspace.yaml` name."""
    return build_definitions(load_project())
