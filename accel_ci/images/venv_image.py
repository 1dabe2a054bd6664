"""Make the runtime image without Docker: a virtual environment with the wheel, PyTorch and the tests' requirements.

An image is named by its content: the exact pins and the wheels' digests. One with the same content is used again.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path

from filelock import FileLock
from pydantic import TypeAdapter

from accel_ci.config.settings import Settings, Variant
from accel_ci.images.contents import installed_packages
from accel_ci.images.sbom import bill_of_materials
from accel_ci.images.versions import VERSIONS_CODE, read_versions
from accel_ci.model import Artifact, RuntimeImage, Wheel
from accel_ci.process.run import run_tool
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.wheels.uv_environment import PackageSource, create, resolve

_IMAGE = TypeAdapter(RuntimeImage)


def make_venv_image(
    settings: Settings, variant: Variant, wheel: Wheel, artifacts: ArtifactStore, images: Path
) -> RuntimeImage:
    """Make the image of a variant, or return the existing one with the same content.

    Raises `BuildError` if the requirements cannot be resolved or installed, or PyTorch does not import.
    """
    started = time.monotonic()
    packages = PackageSource.from_settings(variant.torch_backend)
    prerelease, limit = variant.torch_source == "main", settings.limits.install_seconds
    files = [artifacts.path(each) for each in wheel.wheels]
    requirements = [
        *(f"{file.name.partition('-')[0]} @ {file.as_uri()}" for file in files),
        variant.torch,
        *variant.requirements,
    ]
    pins = resolve(requirements, variant.python, packages, prerelease=prerelease, timeout_s=limit)
    digest = hashlib.sha256(
        f"{variant.python}\n{' '.join(each.sha256 for each in wheel.wheels)}\n{pins}".encode()
    ).hexdigest()
    folder = images / digest[:16]
    manifest = folder / "image.json"  # written last: without it an image is not complete
    images.mkdir(parents=True, exist_ok=True)
    with FileLock(images / f"{digest[:16]}.lock"):
        if manifest.is_file():
            image = _IMAGE.validate_json(manifest.read_bytes())
            if Path(image.python).is_file():
                os.utime(manifest)  # `prune` leaves what was used in the last day
                return replace(image, reused=True, work_s=0.0)
        python = create(folder, variant.python, pins, packages, prerelease=prerelease, timeout_s=limit)
        python_version, torch_version, torch_sha = _versions(python, packages)
        image = RuntimeImage(
            "venv",
            str(python),
            digest,
            python_version,
            torch_version,
            torch_sha,
            tuple(sorted(line.split(";")[0].strip() for line in pins.splitlines())),
            reused=False,
            work_s=round(time.monotonic() - started, 3),
            sbom=_sbom(settings, folder, digest, artifacts),
        )
        write_whole_file(manifest, _IMAGE.dump_json(image, indent=1))
    return image


def _sbom(settings: Settings, folder: Path, digest: str, artifacts: ArtifactStore) -> Artifact:
    [site_packages, *_] = sorted(folder.glob("lib/python*/site-packages"))
    name = settings.backend.distribution
    return artifacts.put_bytes(bill_of_materials(name, digest, installed_packages(site_packages)), f"{name}.cdx.json")


def _versions(python: Path, packages: PackageSource) -> tuple[str, str, str | None]:
    done = run_tool([str(python), "-I", "-c", VERSIONS_CODE], timeout_s=300, environment=packages.environment)
    return read_versions(done, "`torch` of the variant, which must name PyTorch, and that the backend's entry point loads")
