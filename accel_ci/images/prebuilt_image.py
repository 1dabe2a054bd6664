"""Take an image that was built elsewhere, by digest, as the runtime image of a build.

Nothing is built and nothing is run: the image is read in its registry. It must have the build's own wheels, file by file, so
that the tests are of what the build made; an image with another wheel is refused.
"""

from __future__ import annotations

import csv
import hashlib
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from accel_ci.config.settings import PrebuiltImage, Settings, Variant
from accel_ci.errors import BuildError
from accel_ci.images.contents import ImageContents
from accel_ci.images.registry import find_image, read_image
from accel_ci.images.sbom import bill_of_materials
from accel_ci.model import ContainerImage, RuntimeImage, Wheel
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.wheels.installed import recorded_files

_NAMED = 5
"""The number of files that a message names."""


def take_prebuilt_image(
    settings: Settings, variant: Variant, section: PrebuiltImage, wheel: Wheel, artifacts: ArtifactStore
) -> RuntimeImage:
    """Describe an image that was built elsewhere. The commit of its PyTorch is not known.

    Raises `BuildError` if it is not in its registry, or has no PyTorch, or not the wheels of the build.
    """
    started = time.monotonic()
    contents = read_image(find_image(section.reference))
    torch = next((each.version for each in contents.packages if (each.kind, each.name) == ("pypi", "torch")), None)
    if torch is None:
        raise BuildError(f"{section.reference} has no PyTorch; install it where the image is built")
    _require_wheels(section.reference, contents, [artifacts.checked_path(each) for each in wheel.wheels])
    name, size = settings.backend.distribution, sum(layer.size_bytes for layer in contents.layers)
    digest = hashlib.sha256(f"{section.reference}\n{section.python}".encode()).hexdigest()
    return RuntimeImage(
        "docker",
        section.python,
        digest,
        variant.python,
        torch,
        None,
        tuple(f"{each.name}=={each.version}" for each in contents.packages if each.kind == "pypi"),
        reused=False,
        work_s=round(time.monotonic() - started, 3),
        sbom=artifacts.put_bytes(bill_of_materials(name, digest, contents.packages), f"{name}.cdx.json"),
        containers=(ContainerImage("runtime", section.reference, section.reference, size, contents.layers),),
    )


def _require_wheels(reference: str, contents: ImageContents, wheels: Sequence[Path]) -> None:
    """Raise `BuildError` unless the files of the wheels are recorded in the image with their own content."""
    missing = [f"{name} of {wheel.name}" for wheel in wheels for name in _not_recorded(contents, wheel)]
    if missing:
        more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
        raise BuildError(
            f"{reference} has not the wheel of this build: {', '.join(missing[:_NAMED])}{more} is missing or other there; "
            "make the image of this wheel, and name its digest in prebuilt_image"
        )


def _not_recorded(contents: ImageContents, wheel: Path) -> Iterator[str]:
    folder = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/RECORD"
    there = {
        (row[0], row[1])
        for path, record in contents.records.items()
        if path.endswith(f"/{folder}")
        for row in csv.reader(record.decode("utf-8", "replace").splitlines())
        if len(row) > 1
    }
    with zipfile.ZipFile(wheel) as archive:
        yield from (file for file, digest in recorded_files(archive) if (file, digest) not in there)
