"""Make the runtime image of a variant: a Docker image where one is configured, else a virtual environment.

An image that was built elsewhere is taken as it is (`prebuilt_image.py`).

A virtual environment has the wheels, PyTorch and the tests' requirements. An image is named by its content: the exact pins
and the wheels' digests. One with the same content is used again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from filelock import FileLock
from pydantic import TypeAdapter

from accel_ci.config.settings import Settings, Variant
from accel_ci.errors import BuildError
from accel_ci.images.contents import VERSIONS_CODE, installed_packages, read_versions
from accel_ci.images.docker_image import make_docker_image
from accel_ci.images.prebuilt_image import take_prebuilt_image
from accel_ci.images.sbom import bill_of_materials
from accel_ci.model import RuntimeImage, SoftwareStack, Wheel
from accel_ci.redaction import redact_bytes
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.scratch_folder import scratch_folder
from accel_ci.storage.sealed_folder import changes, in_short, seal
from accel_ci.wheels.installed import installed_differently
from accel_ci.wheels.package_source import packages_of
from accel_ci.wheels.uv_environment import create, package_of, resolve, run_code

_LOG = logging.getLogger(__name__)

_IMAGE = TypeAdapter(RuntimeImage)
_RECORD, _SEAL = "image.json", ".seal"


def make_runtime_image(
    settings: Settings,
    variant: Variant,
    wheel: Wheel,
    artifacts: ArtifactStore,
    images: Path,
    stack: SoftwareStack | None = None,
    *,
    trusted: bool = True,
) -> RuntimeImage:
    """Make the image of a variant below the folder `images`, or return the existing one with the same content.

    Programs of a virtual environment find the software stack by the variables of the image; a Docker image has its files.
    An environment in which a test has changed something is made anew; the changed one is kept beside it. A Docker image of
    what is not `trusted` is made apart, since packages that its wheel asks for may run code while they are installed.
    Raises `BuildError` if the requirements cannot be resolved or installed, or PyTorch does not import.
    """
    if (prebuilt := settings.prebuilt_image_of(variant)) is not None:
        return take_prebuilt_image(settings, variant, prebuilt, wheel, artifacts)
    section = settings.image_of(variant)
    if section is not None:
        return make_docker_image(settings, variant, section, wheel, artifacts, images, stack, trusted=trusted)
    started, limit = time.monotonic(), settings.limits.install_seconds
    packages = packages_of(settings, variant)
    files = [artifacts.checked_path(each) for each in wheel.wheels]
    own = [f"{file.name.partition('-')[0]} @ {file.as_uri()}" for file in files]
    pins = resolve([*own, wheel.torch or variant.torch, *variant.requirements], variant.python, packages, timeout_s=limit)
    content = f"{variant.python}\n{' '.join(each.sha256 for each in wheel.wheels)}\n{pins}"
    content += f"\nstack {stack.digest}" if stack is not None else ""
    environment = dict(stack.environment) if stack is not None else {}
    digest = hashlib.sha256(content.encode()).hexdigest()
    folder = images / digest[:16]
    manifest = folder / _RECORD  # written last: without it an image is not complete
    images.mkdir(parents=True, exist_ok=True)
    with FileLock(images / f"{digest[:16]}.lock"):
        if (existing := _existing(folder)) is not None:
            return existing
        python = create(folder, variant.python, pins, packages, timeout_s=limit, compiled=True)
        _require_the_wheels(folder, files)
        with scratch_folder("home") as home:
            done = run_code([str(python), "-I", "-c", VERSIONS_CODE], packages, home, timeout_s=300, extra=environment)
        advice = "`torch` of the variant, which must name PyTorch, and that the backend's entry point loads"
        [site_packages, *_] = sorted(folder.glob("lib/python*/site-packages"))
        name = settings.backend.distribution
        image = RuntimeImage(
            "venv",
            str(python),
            digest,
            *read_versions(done, advice),
            tuple(sorted(map(package_of, pins.splitlines()))),
            reused=False,
            work_s=round(time.monotonic() - started, 3),
            sbom=artifacts.put_bytes(bill_of_materials(name, digest, installed_packages(site_packages)), f"{name}.cdx.json"),
            environment=environment,
        )
        seal(folder, _SEAL, leave_out=(_RECORD,))
        write_whole_file(manifest, redact_bytes(_IMAGE.dump_json(image, indent=1)))
    return image


def changes_of_environment(python: Path) -> list[str]:
    """Return what has changed in the virtual environment of an interpreter since it was made, one line for each path."""
    return changes(python.parents[1], _SEAL, leave_out=(_RECORD,))


def _existing(folder: Path) -> RuntimeImage | None:
    """Return the image in a folder if it is complete and unchanged. A changed one is moved aside."""
    manifest = folder / _RECORD
    try:
        image = _IMAGE.validate_json(manifest.read_bytes())
    except (OSError, ValueError):  # never completed, or damaged
        return None
    if changed := changes_of_environment(folder / "bin" / "python"):
        kept = folder.with_name(f"{folder.name}.changed")
        _LOG.warning("the environment is made anew: %s; see the changed one in %s", in_short(changed), kept)
        shutil.rmtree(kept, ignore_errors=True)
        folder.rename(kept)
        return None
    os.utime(manifest)  # `prune` leaves what was used in the last day
    return replace(image, reused=True, work_s=0.0)


def _require_the_wheels(folder: Path, wheels: Sequence[Path]) -> None:
    """Raise `BuildError` unless the files of the wheels in an environment are as the wheels have them."""
    [site_packages, *_] = sorted(folder.glob("lib/python*/site-packages"))
    if found := [fault for wheel in wheels for fault in installed_differently(wheel, site_packages)]:
        more = f"\nand {len(found) - 10:,} more" if len(found) > 10 else ""
        raise BuildError(
            "the wheel is not what is installed in the runtime image:\n"
            + "\n".join(found[:10])
            + f"{more}\nLeave the other package out of the variant's requirements"
        )
