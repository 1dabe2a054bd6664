"""The runtime image of a variant: a Docker image where one is configured, else a virtual environment."""

from __future__ import annotations

from pathlib import Path

from accel_ci.config.settings import Settings, Variant
from accel_ci.images.docker_image import make_docker_image
from accel_ci.images.venv_image import make_venv_image
from accel_ci.model import RuntimeImage, Wheel
from accel_ci.storage.artifacts import ArtifactStore


def make_runtime_image(
    settings: Settings, variant: Variant, wheel: Wheel, artifacts: ArtifactStore, images: Path
) -> RuntimeImage:
    """Make the image of a variant below the folder `images`, or give back the one with the same content.

    Raises `BuildError` when the requirements cannot be resolved or installed, or PyTorch does not import.
    """
    make = make_venv_image if settings.image_of(variant) is None else make_docker_image
    return make(settings, variant, wheel, artifacts, images)
