"""The builds that test a change of upstream."""

from __future__ import annotations

from accel_ci.config.relay_settings import Relay
from accel_ci.errors import AccelCiError
from accel_ci.workspace import Workspace


def relay_variants(workspace: Workspace) -> tuple[str, ...]:
    """Return the variants that test a change of upstream: those that the settings name, else those of PyTorch's main."""
    settings = workspace.project.settings
    own = relay_settings(workspace).variants
    return own or tuple(variant.name for variant in settings.variants if variant.torch_source == "main")


def relay_settings(workspace: Workspace) -> Relay:
    """Return the section `relay`. Raises `AccelCiError` where there is none."""
    found = workspace.project.settings.relay
    if found is None:
        raise AccelCiError(f"{workspace.project.config_path.name} has no section 'relay'; see docs/relay_downstream.md")
    return found
