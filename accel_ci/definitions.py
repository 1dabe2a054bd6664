"""The definitions that Dagster loads.

`defs` are those of the project whose `accel_ci.yaml` is here or is named by `$ACCEL_CI_CONFIG`; `definitions_of` makes those
of a project that is one of several in a workspace file.
"""

import logging
import os
from pathlib import Path

import dagster as dg

from accel_ci.config.loading import HOME_ENVIRONMENT, load_project
from accel_ci.config.settings import Project
from accel_ci.defs.assembly import build_definitions
from accel_ci.errors import ConfigError
from accel_ci.process.hidden import hide_from_same_user
from accel_ci.redaction import redact_console


@dg.definitions
def defs() -> dg.Definitions:
    """The entry point that `pyproject.toml` and `workspace.yaml` name."""
    return _definitions(load_project())


def definitions_of(config: Path) -> dg.Definitions:
    """Make the definitions of the project of a configuration file, which shares an instance with others.

    Raises `ConfigError` where the file names no location, or the environment names one data folder for all locations.
    """
    if os.environ.get(HOME_ENVIRONMENT):
        raise ConfigError(
            f"{HOME_ENVIRONMENT} names one data folder for all code locations; unset it: each project has its own"
        )
    project = load_project(config)
    if project.settings.location is None:
        raise ConfigError(f"{config} shares an instance with other projects; give it a name: 'location: my-backend'")
    return _definitions(project)


def _definitions(project: Project) -> dg.Definitions:
    hide_from_same_user()
    redact_console()
    logging.getLogger("accel_ci").setLevel(logging.INFO)  # what runs log; dagster.yaml has Dagster show it
    return build_definitions(project)
