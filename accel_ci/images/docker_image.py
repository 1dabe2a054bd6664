"""Build the runtime image as a Docker image: two targets, `development` and `runtime`, of one multi-stage Dockerfile.

An image is named by its content: the Dockerfile, the exact pins and the wheels' digests. One with the same content is used
again; for others, the builder (`builder.py`) runs the steps that differ. Packages reach a build by bind mounts, and package
indexes by secrets, so that neither is in a layer or in the image's history. No card is needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uv
from filelock import FileLock
from jinja2 import Environment, StrictUndefined
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from pydantic import TypeAdapter

from accel_ci.config.settings import Image, Settings, Variant
from accel_ci.config.values import Size
from accel_ci.docker.image import tag_image
from accel_ci.errors import BuildError
from accel_ci.images.builder import ImageBuilder, builder_of
from accel_ci.images.contents import VERSIONS_CODE, duplicates, read_versions
from accel_ci.images.sbom import bill_of_materials
from accel_ci.model import CheckResult, ContainerImage, RuntimeImage, SoftwareStack, Wheel
from accel_ci.redaction import redact_bytes, without_credentials
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.scratch_folder import scratch_folder
from accel_ci.wheels.audit import check_size
from accel_ci.wheels.front_end import files_of, local_folders, package_environment
from accel_ci.wheels.package_source import packages_of
from accel_ci.wheels.uv_environment import PackageSource, netrc_with, resolve

IMAGE_CHECK_NAMES = ("runtime_size", "development_size", "duplicate_libraries")
"""The checks of a Docker image."""

PYTHON = "/opt/venv/bin/python"
"""The interpreter in the image."""

TARGETS = ("development", "runtime")

_IMAGE = TypeAdapter(RuntimeImage)
_FIND_LINKS = "/build/find-links"
_SECRET_LIMIT_BYTES = 500_000  # the limit of BuildKit


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the contents of an image; `digest` names it.

    `files` are those of the wheel, and `given` other wheels that the pins name as files of this machine. `stack` is the
    archive of the software stack, None without one.
    """

    variant: Variant
    section: Image
    wheel: Wheel
    files: tuple[Path, ...]
    given: tuple[Path, ...]
    packages: PackageSource
    pins: str
    dockerfile: str
    digest: str
    stack: Path | None = None


def make_docker_image(
    settings: Settings,
    variant: Variant,
    section: Image,
    wheel: Wheel,
    artifacts: ArtifactStore,
    images: Path,
    stack: SoftwareStack | None = None,
    *,
    trusted: bool = True,
) -> RuntimeImage:
    """Build both targets of a variant's image, or return the existing ones with the same content.

    The files of the software stack are where they were built. If a registry is configured, the images are pushed. What
    is not `trusted` has other images, whose builds have another cache of uv, and another repository if one is configured.
    The results of checks are part of the image. Raises `BuildError` if no engine answers, the requirements cannot be
    resolved, a step fails, or PyTorch does not import.
    """
    started, limit_s = time.monotonic(), settings.limits.install_seconds
    if not trusted and section.registry_of_pulls is not None:
        section = section.model_copy(update={"registry": section.registry_of_pulls})
    recipe, builder = _recipe(settings, variant, section, wheel, artifacts, stack, trusted), builder_of(section)
    manifest = images / f"docker-{recipe.digest[:16]}.json"
    images.mkdir(parents=True, exist_ok=True)
    name = f"accel-ci/{canonicalize_name(settings.backend.distribution)}{'' if trusted else '-of-pulls'}"
    with FileLock(images / f"docker-{recipe.digest[:16]}.lock"):
        if (made := _existing(builder, manifest)) is not None:
            os.utime(manifest)  # `prune` leaves what was used in the last day
            _name_newest(name, recipe, made)
            return replace(made, checks=_checks(section, made.containers, made.checks), reused=True, work_s=0.0)
        image = _make(builder, settings.backend.distribution, recipe, artifacts, limit_s)
        image = replace(image, work_s=round(time.monotonic() - started, 3))
        write_whole_file(manifest, redact_bytes(_IMAGE.dump_json(image, indent=1)))
        _name_newest(name, recipe, image)
    return image


def _name_newest(name: str, recipe: Recipe, image: RuntimeImage) -> None:
    """Name the variant's newest images where no registry does: people find them, and `docker image prune` spares them."""
    if recipe.section.registry is None:
        for container in image.containers:
            end = "" if container.target == "runtime" else f"-{container.target}"
            tag_image(container.id, f"{name}:{recipe.variant.name}{end}")


def render_dockerfile(
    section: Image, variant: Variant, packages: PackageSource, stack: SoftwareStack | None = None, *, trusted: bool = True
) -> str:
    """Render the Dockerfile of a variant. One that is not `trusted` has another cache of uv."""
    environment = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)  # noqa: S701
    environment.filters["quoted"] = lambda value: json.dumps(value).replace("$", "\\$")
    template = files("accel_ci.images") / "templates" / "Dockerfile.j2"
    base = section.runtime_base or section.base
    return environment.from_string(template.read_text("utf-8")).render(
        base=section.base,
        runtime_base=base,
        cache=hashlib.sha256(base.encode()).hexdigest()[:12],
        uv_cache="accel-ci-uv" if trusted else "accel-ci-uv-of-pulls",
        development_packages=section.development_packages,
        runtime_packages=section.runtime_packages,
        stripped=[_pattern(each) for each in section.stripped],
        environment={**(stack.environment if stack is not None else {}), **section.environment},
        stack=stack.prefix if stack is not None else None,
        python=variant.python,
        options=" ".join([*packages.options, *(["--no-build"] if packages.builds_nothing else [])]),
    )


def _pattern(path: str) -> str:
    """Quote a path for a shell, except for its wild cards."""
    return re.sub(r"[^*?]+", lambda part: shlex.quote(part[0]), path)


def _recipe(
    settings: Settings,
    variant: Variant,
    section: Image,
    wheel: Wheel,
    artifacts: ArtifactStore,
    stack: SoftwareStack | None,
    trusted: bool,
) -> Recipe:
    limit_s = settings.limits.install_seconds
    packages = packages_of(settings, variant, in_container=True)
    files = tuple(artifacts.checked_path(each) for each in wheel.wheels)
    own = [f"{parse_wheel_filename(file.name)[0]} @ {file.as_uri()}" for file in files]
    pins = resolve([*own, wheel.torch or variant.torch, *variant.requirements], variant.python, packages, timeout_s=limit_s)
    files_named = files_of(pins.splitlines())
    given = {line: file for line, file in files_named.items() if file not in files}
    others = "".join(_in_context(line, given) for line in pins.splitlines() if files_named.get(line) not in files)
    dockerfile = render_dockerfile(section, variant, packages, stack, trusted=trusted)
    parts = [dockerfile, others, *(each.sha256 for each in wheel.wheels), variant.name, section.registry or ""]
    parts += [stack.digest] if stack is not None else []
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    archive = artifacts.checked_path(stack.archive) if stack is not None else None
    return Recipe(variant, section, wheel, files, tuple(given.values()), packages, others, dockerfile, digest, archive)


def _in_context(pin: str, given: Mapping[str, Path]) -> str:
    """Write a line of pins; a file of this machine has another address in a build."""
    file = given.get(pin)
    if file is None:
        return f"{pin}\n"
    digest = "".join(pin.partition("#")[1:])
    return f"{pin.partition(' @ ')[0]} @ file://{_FIND_LINKS}/{quote(file.name)}{digest}\n"


def _existing(builder: ImageBuilder, manifest: Path) -> RuntimeImage | None:
    """The image that was built from the same content, if it is still there."""
    try:
        image = _IMAGE.validate_json(manifest.read_bytes())
    except (OSError, ValueError):
        return None
    return image if image.containers and builder.has([each.reference for each in image.containers]) else None


def _make(
    builder: ImageBuilder, distribution: str, recipe: Recipe, artifacts: ArtifactStore, limit_s: float
) -> RuntimeImage:
    with scratch_folder("image") as scratch:
        context = scratch / "context"
        _fill(context, recipe)
        secrets = secret_options(scratch, recipe.packages)
        plain = [builder.build(context, target, {}, secrets, limit_s) for target in TARGETS]
        steps = {**plain[1].steps, **plain[0].steps}  # the first build ran the steps that both need
        versions = _versions(builder, plain[-1].id)
        labels = _labels(distribution, recipe, *versions[1:])
        labelled = [builder.build(context, target, labels, secrets, limit_s).id for target in TARGETS]  # all is cached
    pairs = zip(TARGETS, labelled, strict=True)
    containers = tuple(_container(builder, target, image, recipe) for target, image in pairs)
    contents = builder.read(containers[-1].id, containers[-1].reference)
    found = duplicates(contents.libraries, recipe.section.allowed_duplicates)
    summary = f"{len(found)} duplicates" if found else f"no duplicates among {len(contents.libraries)}"
    summary += f"; {contents.wasted_bytes:,} bytes of files are replaced or removed by later layers"
    check = CheckResult("duplicate_libraries", not found, summary, tuple(found))
    sbom = bill_of_materials(distribution, recipe.digest, contents.packages)
    return RuntimeImage(
        "docker",
        PYTHON,
        recipe.digest,
        *versions,
        tuple(f"{each.name}=={each.version}" for each in contents.packages if each.kind == "pypi"),
        reused=False,
        work_s=0.0,
        sbom=artifacts.put_bytes(sbom, f"{distribution}.cdx.json"),
        containers=containers,
        checks=_checks(recipe.section, containers, (check,)),
        cached_steps=sum(steps.values()),
        steps=len(steps),
    )


def _fill(context: Path, recipe: Recipe) -> None:
    """Fill the build context with links to the files; files on another file system are copied."""
    if not sys.platform.startswith("linux"):
        reason = "uv is mounted into the build; remove the section 'image'"
        raise BuildError(f"Docker images can only be built on Linux, because {reason}")
    for folder in ("wheels", "find-links"):
        (context / folder).mkdir(parents=True)
    (context / "Dockerfile").write_text(recipe.dockerfile)
    (context / "pins.txt").write_text(recipe.pins)
    link_or_copy(Path(uv.find_uv_bin()), context / "uv")
    if recipe.stack is not None:
        link_or_copy(recipe.stack, context / "stack.tar.gz")
    for file in recipe.files:
        link_or_copy(file, context / "wheels" / file.name)
    for file in recipe.given:
        link_or_copy(file, context / "find-links" / file.name)
    wanted = {canonicalize_name(re.split(r"[^A-Za-z0-9._-]", line)[0]) for line in recipe.pins.splitlines()}
    for place in local_folders(recipe.packages):
        for file in sorted(place.glob("*.whl")):
            with contextlib.suppress(InvalidWheelFilename):
                if parse_wheel_filename(file.name)[0] in wanted and not (context / "find-links" / file.name).exists():
                    link_or_copy(file, context / "find-links" / file.name)


def link_or_copy(file: Path, destination: Path) -> None:
    """Have a file in a build context; from another file system it is copied."""
    try:
        os.link(file.resolve(), destination)
    except OSError:  # on another file system
        shutil.copy(file, destination)


def secret_options(folder: Path, packages: PackageSource) -> list[str]:
    """The options that pass package indexes, which may hold passwords, and certificates to a build."""
    places = [each for each in packages.environment.get("UV_FIND_LINKS", "").split(",") if "://" in each]
    find_links = ",".join([_FIND_LINKS, *(each for each in places if not each.startswith("file:"))])
    environment = {**package_environment(packages.for_packages()), "UV_FIND_LINKS": find_links, "UV_LINK_MODE": "copy"}
    options = []
    certificates = Path(packages.environment.get("SSL_CERT_FILE") or "/nonexistent")
    if certificates.is_file() and certificates.stat().st_size <= _SECRET_LIMIT_BYTES:
        environment["SSL_CERT_FILE"] = "/run/secrets/certificates"
        options += ["--secret", f"id=certificates,src={certificates}"]
    if packages.logins:
        logins = folder / "netrc"
        write_whole_file(logins, netrc_with(packages).encode(), mode=0o600)
        environment["NETRC"] = "/run/secrets/netrc"
        options += ["--secret", f"id=netrc,src={logins}"]
    file = folder / "packages"
    file.touch(0o600)
    file.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items()))
    return [*options, "--secret", f"id=packages,src={file}"]


def _versions(builder: ImageBuilder, image: str) -> tuple[str, str, str | None]:
    advice = "that image.stripped removes nothing that is needed, and that image.runtime_packages has the system libraries"
    return read_versions(builder.run(image, [PYTHON, "-I", "-c", VERSIONS_CODE], 300), f"`torch` of the variant, {advice}")


def _labels(distribution: str, recipe: Recipe, torch_version: str, torch_sha: str | None) -> dict[str, str]:
    """The sources of the image, under the names of OCI annotations where these exist, else under our own."""
    variant, wheel = recipe.variant, recipe.wheel
    repository = without_credentials(wheel.repository)
    base, _, digest = (recipe.section.runtime_base or recipe.section.base).partition("@")
    labels = {
        "org.opencontainers.image.title": distribution,
        "org.opencontainers.image.version": wheel.version,
        "org.opencontainers.image.revision": wheel.source,
        "org.opencontainers.image.source": repository if "://" in repository else Path(repository).name,
        "org.opencontainers.image.base.name": base,
        "org.opencontainers.image.base.digest": digest,
        "accel-ci.variant": variant.name,
        "accel-ci.content": recipe.digest,
        "accel-ci.wheels.sha256": " ".join(each.sha256 for each in wheel.wheels),
        "accel-ci.patches": " ".join(wheel.patches),
        "accel-ci.upstream.version": torch_version,
        "accel-ci.upstream.revision": torch_sha,
        "accel-ci.runtime": variant.runtime,
    }
    return {name: value for name, value in labels.items() if value}


def _container(builder: ImageBuilder, target: Any, image: str, recipe: Recipe) -> ContainerImage:
    """Describe an image; if a registry is configured, push it and name it by digest."""
    reference, tag = image, f"{recipe.variant.name}-{recipe.digest[:12]}{'' if target == 'runtime' else '-development'}"
    if recipe.section.registry:
        reference = builder.push(image, f"{recipe.section.registry}:{tag}")
    return ContainerImage(target, image, reference, *builder.measure(image, reference))


def _checks(section: Image, containers: Sequence[ContainerImage], found: Sequence[CheckResult]) -> tuple[CheckResult, ...]:
    """Check sizes against the current budgets; keep the earlier result on libraries."""
    budgets = {"runtime": section.runtime_budget, "development": section.development_budget}
    sizes = [_check_size(each, budgets[each.target]) for each in reversed(containers)]  # `runtime` is first
    return (*sizes, *(check for check in found if check.name == "duplicate_libraries"))


def _check_size(container: ContainerImage, budget: Size | None) -> CheckResult:
    name, size = container.target, container.size_bytes
    largest = sorted(container.layers, key=lambda layer: -layer.size_bytes)[:10]
    findings = (f"{layer.size_bytes:,} bytes: {layer.made_by}" for layer in largest)
    return check_size(f"{name}_size", size, budget, f"image.{name}_budget", findings)
