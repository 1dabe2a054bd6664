"""The source of packages of a variant, by the settings of a project."""

from __future__ import annotations

from accel_ci.config.settings import Settings, Variant
from accel_ci.process.own_user import OwnUser
from accel_ci.wheels.uv_environment import PackageSource


def packages_of(settings: Settings, variant: Variant, *, in_container: bool = False) -> PackageSource:
    """Return where the packages of a variant come from, and what code sees of it. In a container, code runs as its user."""
    return PackageSource.from_settings(
        variant.torch_backend,
        keep=settings.wheels_of(variant).pass_environment,
        user=None if in_container else OwnUser.named(settings.code_user),
        requirements=(variant.torch, *variant.requirements),
        torch_index=variant.torch_index,
        only_wheels=settings.wheels_of(variant).only_wheels,
    )
