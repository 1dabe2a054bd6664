"""The definitions that Dagster loads: of the project whose `accel_ci.yaml` is here or is named by `$ACCEL_CI_CONFIG`."""

import logging

import dagster as dg

from accel_ci.config.loading import load_project
from accel_ci.defs.assembly import build_definitions
from accel_ci.process.hidden import hide_from_same_user
from accel_ci.redaction import redact_console


@dg.definitions
def defs() -> dg.Definitions:
    """The entry point that `pyproject.toml` and `workspace.yaml` name."""
    hide_from_same_user()
    redact_console()
    logging.getLogger("accel_ci").setLevel(logging.INFO)  # what runs log; dagster.yaml has Dagster show it
    return build_definitions(load_project())
