"""The images that the engine has: pulled, inspected, pushed, and read.

What must be in an image, and how it is built, is not known here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from subprocess import DEVNULL, PIPE, Popen
from typing import IO, cast

from accel_ci.docker.client import ask_docker, docker_client, docker_environment, run_docker
from accel_ci.errors import BuildError
from accel_ci.model import ImageLayer

_LOG = logging.getLogger(__name__)
_LOOK_LIMIT_S = 20.0
_ABSENT = ("no such manifest", "manifest unknown", "name unknown", "not found")  # in the answers of registries
_PUSH_LIMIT_S = 3600.0


def has_images(images: Sequence[str]) -> bool:
    """Return True if the engine has all these images. Raises `BuildError` if there is no client."""
    return run_docker(["image", "inspect", "--format", "{{.Id}}", *images]).status == 0


def pull_image(image: str, limit_s: float) -> None:
    """Pull an image that the engine does not have. Raises `BuildError` if that fails or takes longer than the limit."""
    if not has_images([image]):
        _LOG.info("pulling %s", image)
        try:
            ask_docker(["pull", "--quiet", image], f"pull {image}", timeout_s=limit_s)
        except BuildError as error:
            raise BuildError(f"{error}; see that the registry has it and lets you in") from None


def check_image(image: str) -> None:
    """Check that the engine has an image, or that its registry does. Raises `BuildError`."""
    if has_images([image]):
        return
    try:
        ask_docker(["manifest", "inspect", "--insecure", image], f"find {image}", timeout_s=_LOOK_LIMIT_S)
    except BuildError as error:
        raise BuildError(f"{error}; see that the registry has it and lets you in") from None


def check_registry(repository: str) -> None:
    """Check that the registry of a repository answers and lets this user in. Raises `BuildError`."""
    command = ["manifest", "inspect", "--insecure", f"{repository}:accel-ci-check"]
    try:
        ask_docker(command, f"ask the registry of {repository}", timeout_s=_LOOK_LIMIT_S)
    except BuildError as error:
        if not any(reason in str(error).lower() for reason in _ABSENT):
            raise BuildError(f"{error}; see that image.registry is right, runs, and lets you in (`docker login`)") from None


def tag_image(image: str, name: str) -> None:
    """Give an image a name, in place of the one that had it. Raises `BuildError`."""
    ask_docker(["tag", image, name], f"name the image {name}")


def untag_image(name: str) -> None:
    """Take a name from an image that has others: with its last name, the engine would remove the image itself."""
    names = run_docker(["image", "inspect", "--format", "{{len .RepoTags}}", name]).output.strip()
    if names.isdecimal() and int(names) > 1:
        run_docker(["image", "rm", name])


def push_image(image: str, name: str) -> str:
    """Push an image under a name, `registry/repository:tag`. Return its name by digest. Raises `BuildError`."""
    tag_image(image, name)
    _LOG.info("pushing %s", name)
    ask_docker(["push", "--quiet", name], f"push {name}", timeout_s=_PUSH_LIMIT_S)
    digests = json.loads(ask_docker(["image", "inspect", "--format", "{{json .RepoDigests}}", image], f"inspect {image}"))
    repository = name.rpartition(":")[0]
    pushed = next((each for each in digests if each.startswith(f"{repository}@")), None)
    if pushed is None:
        raise BuildError(f"the engine does not name the digest under which it pushed {name}; check the registry")
    return str(pushed)


def image_size(image: str) -> int:
    """The size of an image in bytes. Raises `BuildError`."""
    return int(ask_docker(["image", "inspect", "--format", "{{.Size}}", image], f"inspect {image}"))


def image_layers(image: str) -> tuple[ImageLayer, ...]:
    """The layers of an image that are not empty, in their order. Raises `BuildError`."""
    form = ["--human=false", "--no-trunc", "--format", "{{json .}}"]
    lines = ask_docker(["image", "history", *form, image], f"list the layers of {image}").splitlines()
    layers = [ImageLayer(" ".join(each["CreatedBy"].split())[:160], int(each["Size"])) for each in map(json.loads, lines)]
    return tuple(layer for layer in reversed(layers) if layer.size_bytes)


@contextmanager
def saved_image(image: str) -> Iterator[IO[bytes]]:
    """The stream that `docker save` writes; the client ends with the context."""
    save = [docker_client(), "save", image]
    with Popen(save, stdout=PIPE, stderr=DEVNULL, env=docker_environment()) as process:
        try:
            yield cast("IO[bytes]", process.stdout)
        finally:
            process.kill()
