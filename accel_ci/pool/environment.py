"""The environment of workers in containers, which get nothing of this machine but what the configuration names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from accel_ci.config.pool_settings import DockerPoolSettings, KubernetesPoolSettings
from accel_ci.model import RuntimeImage, WorkerSpec
from accel_ci.process.environment import clean_environment


def container_spec(
    settings: DockerPoolSettings | KubernetesPoolSettings,
    image: RuntimeImage,
    sources: Path,
    card_environment: str = "",
    defaults: Mapping[str, str] | None = None,
    hidden: Mapping[str, str] = MappingProxyType({}),
) -> WorkerSpec:
    """The spec of workers in containers: of the pool's own image, else of the build's.

    A container gets no variable of this process except those that `pass_environment` names. The configuration overrides
    `defaults`, and `hidden` all of it.
    """
    made = image.container("runtime")
    inherited = {name: os.environ[name] for name in settings.pass_environment if name in os.environ}
    return WorkerSpec(
        settings.python or ("python3" if settings.image else image.python), str(sources),
        clean_environment(
            {**(defaults or {}), **settings.environment, **hidden}, inherited=inherited, keep=settings.pass_environment
        ),
        card_environment, image=settings.image or (made.reference if made is not None else None),
    )  # fmt: skip
