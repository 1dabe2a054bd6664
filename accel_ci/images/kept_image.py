"""The image of an earlier build, to be used again as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from accel_ci.docker.client import engine_version
from accel_ci.docker.image import check_image
from accel_ci.errors import BuildError
from accel_ci.images.registry import require_image
from accel_ci.images.runtime_image import changes_of_environment
from accel_ci.model import RuntimeImage
from accel_ci.storage.sealed_folder import in_short


def same_image(image: RuntimeImage, make: Callable[[], RuntimeImage]) -> RuntimeImage:
    """Return an image that is still there, or one that is made anew with the same content.

    Raises `BuildError` if neither can be had.
    """
    try:
        _require_unchanged(image)
    except BuildError as error:
        gone = str(error)
    else:
        return replace(image, reused=True, work_s=0.0)
    made = make()
    if made.digest != image.digest:
        raise BuildError(f"{gone}; one that is made now would have other packages, so its failures cannot run again")
    return made


def _require_unchanged(image: RuntimeImage) -> None:
    """Raise `BuildError` if an image is gone, or no longer what it was."""
    if container := image.container("runtime"):
        if "@" in container.reference and engine_version() is None:
            require_image(container.reference)
        else:
            check_image(container.reference)
    elif not Path(image.python).exists():
        raise BuildError(f"the environment {Path(image.python).parents[1]} is gone; `accel-ci prune` removes old ones")
    elif changed := changes_of_environment(Path(image.python)):
        raise BuildError(f"tests have changed the environment {Path(image.python).parents[1]}: {in_short(changed)}")
