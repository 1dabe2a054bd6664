"""Build images with the Docker engine and BuildKit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from accel_ci.docker.client import run_docker
from accel_ci.docker.image import has_images, image_layers, image_size, push_image, saved_image
from accel_ci.errors import BuildError
from accel_ci.images.builder import Built
from accel_ci.images.contents import ImageContents, read_image
from accel_ci.model import ImageLayer
from accel_ci.process.run import Finished


class DockerBuilder:
    """The engine that `DOCKER_HOST` names, which also keeps the images."""

    def has(self, references: Sequence[str]) -> bool:
        """See `ImageBuilder`."""
        return has_images(references)

    def build(self, context: Path, target: str, labels: Mapping[str, str], secrets: Sequence[str], limit_s: float) -> Built:
        """See `ImageBuilder`. Labels add no layer, and repeat no step."""
        identity = context.with_name(f"{target}.id")
        options = ["--target", target, "--iidfile", str(identity), *secrets]
        options += [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
        done = run_docker(["build", *options, str(context)], timeout_s=limit_s)
        if done.status != 0:
            raise BuildError(f"the target {target} of the Docker image cannot be built:\n{done.tail}")
        return Built(identity.read_text().strip(), steps_of(done.output))

    def run(self, image: str, command: Sequence[str], limit_s: float) -> Finished:
        """See `ImageBuilder`."""
        options = ["run", "--rm", "--network", "none", "--entrypoint", command[0]]
        return run_docker([*options, image, *command[1:]], timeout_s=limit_s)

    def push(self, image: str, name: str) -> str:
        """See `ImageBuilder`."""
        return push_image(image, name)

    def remove(self, images: Sequence[str]) -> None:
        """See `ImageBuilder`."""
        for image in images:
            run_docker(["image", "rm", "--force", image])

    def measure(self, image: str, reference: str) -> tuple[int, tuple[ImageLayer, ...]]:
        """See `ImageBuilder`."""
        return image_size(image), image_layers(image)

    def read(self, image: str, reference: str) -> ImageContents:
        """See `ImageBuilder`."""
        with saved_image(image) as stream:
            try:
                return read_image(stream)
            except ValueError as error:
                raise BuildError(
                    f"the contents of {image} cannot be read: {error}; look at `docker save {image}`"
                ) from error


def steps_of(progress: str) -> dict[str, bool]:
    """Map each step in BuildKit's plain progress to whether it was cached; base images are not steps."""
    named = dict(re.findall(r"^#(\d+) (\[(?!internal\])[^\]]*\] (?!FROM ).*)$", progress, re.MULTILINE))
    cached = set(re.findall(r"^#(\d+) CACHED", progress, re.MULTILINE))
    return {name: number in cached for number, name in named.items()}
