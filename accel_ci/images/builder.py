"""The builder of images: what a recipe needs of Docker or of another program that builds images.

A builder builds from a context, runs a command in what it built, and hands images over to those who use them. Recipes,
checks and records are in `docker_image.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from accel_ci.config.settings import Image
from accel_ci.images.contents import ImageContents
from accel_ci.model import ImageLayer
from accel_ci.process.run import Finished


@dataclass(frozen=True)
class Built:
    """The builder's name of an image, `sha256:…`; `steps` maps each step to whether it was cached."""

    id: str
    steps: Mapping[str, bool]


class ImageBuilder(Protocol):
    """Builds images. All methods raise `BuildError` if the builder cannot be reached."""

    def has(self, references: Sequence[str]) -> bool:
        """Return True if those who use the images can still have all of them."""

    def build(self, context: Path, target: str, labels: Mapping[str, str], secrets: Sequence[str], limit_s: float) -> Built:
        """Build one target of the Dockerfile in a context, with these labels. Repeats no step that it has done before.

        `secrets` are options of the form `--secret id=…,src=…`. Raises `BuildError` with the end of a failing step's output.
        """

    def run(self, image: str, command: Sequence[str], limit_s: float) -> Finished:
        """Run a command in a new container of an image, without a network where the builder can do that."""

    def push(self, image: str, name: str) -> str:
        """Push an image under a name, `registry/repository:tag`. Return its name by digest. Raises `BuildError`."""

    def remove(self, images: Sequence[str]) -> None:
        """Remove images from here, with all their names; one that is gone or in use is left."""

    def measure(self, image: str, reference: str) -> tuple[int, tuple[ImageLayer, ...]]:
        """Return the unpacked size of an image in bytes, and its layers that are not empty, in their order."""

    def read(self, image: str, reference: str) -> ImageContents:
        """Read the contents of an image. Raises `BuildError` if they are damaged."""


def builder_of(section: Image) -> ImageBuilder:
    """Return the builder that a section of the configuration names."""
    if section.builder.kind == "buildah":
        from accel_ci.images.buildah_builder import BuildahBuilder

        return BuildahBuilder(section.builder.cache)
    from accel_ci.images.docker_builder import DockerBuilder

    return DockerBuilder()
