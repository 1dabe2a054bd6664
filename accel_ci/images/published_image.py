"""The runtime image of a build, with its wheels as a package index has them."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import uv

from accel_ci.config.settings import Image
from accel_ci.docker.image import tag_image, untag_image
from accel_ci.errors import BuildError
from accel_ci.images.builder import builder_of
from accel_ci.images.docker_image import PYTHON, link_or_copy, secret_options
from accel_ci.images.registry import remove_image
from accel_ci.model import RuntimeImage
from accel_ci.storage.scratch_folder import scratch_folder
from accel_ci.wheels.uv_environment import PackageSource

_LOG = logging.getLogger(__name__)

_TARGET = "runtime"


@contextmanager
def image_from_index(
    section: Image, image: RuntimeImage, pins: Sequence[str], import_name: str, packages: PackageSource, limit_s: float
) -> Iterator[RuntimeImage]:
    """Make the image anew without the projects of `pins`, then with what the index has; it is removed in the end.

    Each pin is a version with a digest. `packages` has the index alone; logins of others are left out. Raises `BuildError`
    if the index does not have them, or if what is installed does not go together or does not import.
    """
    container, builder = image.container(_TARGET), builder_of(section)
    if container is None:
        raise BuildError("the build has no runtime image; run it again")
    with ExitStack() as undone:
        base = container.reference
        if base == container.id:  # a Dockerfile can only name what has a name
            base = f"accel-ci/published:{image.digest[:12]}"
            tag_image(container.id, base)
            undone.callback(untag_image, base)
        with scratch_folder("published") as scratch:
            context = Path(scratch) / "context"
            context.mkdir()
            link_or_copy(Path(uv.find_uv_bin()), context / "uv")
            # The time keeps the builder from taking the step out of its cache: the index is to be asked now.
            (context / "pins.txt").write_text("\n".join([f"# {datetime.now(timezone.utc).isoformat()}", *pins, ""]))
            (context / "Dockerfile").write_text(_dockerfile(base, [pin.partition("==")[0] for pin in pins], import_name))
            try:
                made = builder.build(context, _TARGET, {}, secret_options(scratch, replace(packages, logins={})), limit_s).id
            except BuildError as error:
                raise BuildError(f"what was published cannot be used in the image of the build: {error}") from None
        undone.callback(builder.remove, [made])
        reference = made
        if section.registry:
            reference = builder.push(made, f"{section.registry}:published-{image.digest[:12]}")
            undone.callback(_remove, reference)
        yield replace(image, containers=(replace(container, id=made, reference=reference),))


def _remove(reference: str) -> None:
    """Remove the image from the registry. One that stays takes nothing from what the verification has found."""
    if (why := remove_image(reference)) is not None:
        _LOG.warning("%s stays, and can be removed: %s", reference, why)


def _dockerfile(base: str, projects: Sequence[str], import_name: str) -> str:
    """Write the steps. Code of the wheels runs where no secret is mounted: an interpreter that starts may run some."""
    python = f"--python {PYTHON} --no-cache"
    uv_itself = "--mount=type=bind,source=uv,target=/usr/local/bin/uv"
    secrets = " ".join(f"--mount=type=secret,id={name}" for name in ("packages", "certificates"))
    lines = [
        f"FROM {base} AS {_TARGET}",
        "USER 0:0",
        f"RUN {uv_itself} uv pip uninstall {python} {shlex.join(projects)}",
        f"RUN {uv_itself} --mount=type=bind,source=pins.txt,target=/build/pins.txt {secrets} "
        ". /run/secrets/packages && unset UV_FIND_LINKS && "
        f"uv pip install {python} --no-deps --require-hashes -r /build/pins.txt",
        "USER 10001:10001",
        f"RUN {uv_itself} uv pip check {python} && {PYTHON} -I -c {shlex.quote(f'import {import_name}')}",
    ]
    return "".join(f"{line}\n" for line in lines)
