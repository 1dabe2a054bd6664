"""Build the backend's wheels and sdists in isolation from a clean copy of the sources; reuse them while nothing changes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from pydantic import TypeAdapter

from accel_ci.config.settings import Companion, Settings, Variant
from accel_ci.docker.client import engine_version
from accel_ci.errors import AccelCiError, BuildError
from accel_ci.model import SoftwareStack, Source, Wheel
from accel_ci.redaction import redact_bytes
from accel_ci.source.checkout import checkout_root
from accel_ci.source.patches import apply_series, read_series
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.scratch_folder import scratch_folder
from accel_ci.wheels.checks import BuiltWheel, check_wheels
from accel_ci.wheels.front_end import Builder
from accel_ci.wheels.package_source import packages_of
from accel_ci.wheels.torch_wheel import with_exact_torch

_WHEEL = TypeAdapter(Wheel)


def build_wheel(
    settings: Settings,
    variant: Variant,
    source: Source,
    sources: Path,
    artifacts: ArtifactStore,
    cache: Path,
    root: Path,
    upstream_sha: str | None = None,
    stack: SoftwareStack | None = None,
    *,
    public: bool = False,
    trusted: bool = True,
) -> Wheel:
    """Build and check the wheels of a variant, or return those that were built from the same inputs.

    The configuration's paths are relative to `root`; `upstream_sha` is the commit of the revision's upstream. The build runs
    in the configured image if an engine answers, else on this machine, and finds the software stack. The versions of
    `public` ones do not name the state of the sources: `{label}` is empty. What is not `trusted`, such as a pull request,
    has other wheels and another compiler's cache, also where a trusted commit is the same. Raises `BuildError` if the build
    fails, or if there is no PyTorch to build it for; the results of checks are part of the wheel.
    """
    started, label = time.monotonic(), "" if public else source.label
    rules = settings.wheels_of(variant)
    patches = read_series(root / rules.patches) if rules.patches else ()
    image = rules.builder if rules.builder and engine_version() else None
    packages = packages_of(settings, variant, in_container=image is not None)
    configured = variant.torch
    variant = with_exact_torch(variant, packages, root, upstream_sha, timeout_s=settings.limits.install_seconds)
    inputs = {
        "source": source.tree or source.sha,
        "label": source.label,
        "environment": settings.backend.build_environment,
        "variant": variant.model_dump(mode="json"),
        "backend": settings.backend.model_dump(mode="json"),
        "wheels": rules.model_dump(mode="json"),
        "patches": [hashlib.sha256(patch.read_bytes()).hexdigest() for patch in patches],
        "builder": image,
        **({"stack": stack.digest} if stack is not None else {}),
        **({"public": True} if public else {}),
        **({} if trusted else {"trusted": False}),
    }
    manifest = cache / f"{hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()}.json"
    if (reused := _reuse(manifest, artifacts)) is not None:
        return reused
    compiler_cache = cache.absolute() / ("compiler" if trusted else "compiler-of-pulls")
    limit_s = settings.limits.build_seconds
    with scratch_folder("wheel") as scratch:
        whole = checkout_root(sources)
        scratch.chmod(0o711)  # another user gets to what is its own, and sees nothing else
        installed = Path(stack.prefix) if stack is not None else None
        builder = Builder(image, rules, packages, compiler_cache, limit_s, scratch, variant.torch, installed)
        shutil.copytree(whole, scratch / "sources", symlinks=True)
        copy = scratch / "sources" / sources.relative_to(whole)
        applied = apply_series(patches, copy)
        main, *companions = built = _build_all(settings, variant, label, copy, scratch, builder, stack)
        name, version, _, _ = parse_wheel_filename(main.wheel.name)
        checks = check_wheels(built, settings, variant, label, builder)
        wheel = Wheel(
            str(name),
            str(version),
            artifacts.put(main.wheel),
            artifacts.put(main.sdist),
            checks,
            reused=False,
            work_s=round(time.monotonic() - started, 3),
            companions=tuple(artifacts.put(each.wheel) for each in companions),
            repository=source.repository,
            source=source.sha,
            patches=applied.names,
            built_in=builder.name,
            torch=variant.torch if variant.torch != configured else None,
            public=public,
        )
    if all(check.passed for check in checks):
        cache.mkdir(parents=True, exist_ok=True)
        write_whole_file(manifest, redact_bytes(_WHEEL.dump_json(wheel, indent=1)))
    return wheel


def _reuse(manifest: Path, artifacts: ArtifactStore) -> Wheel | None:
    try:
        wheel = _WHEEL.validate_json(manifest.read_bytes())
        for artifact in (*wheel.wheels, wheel.sdist):
            artifacts.checked_path(artifact)
            artifacts.mark_used(artifact)
        os.utime(manifest)
    except (OSError, ValueError, AccelCiError):  # never built, written by another version of accel-ci, or removed
        return None
    return replace(wheel, reused=True, work_s=0.0)


def _build_all(
    settings: Settings,
    variant: Variant,
    label: str,
    sources: Path,
    scratch: Path,
    builder: Builder,
    stack: SoftwareStack | None,
) -> list[BuiltWheel]:
    """Build the backend's wheel, then its companions."""
    backend = settings.backend
    own = backend.model_dump(include={"distribution", "import_name", "entry_points"})
    main = Companion(**own, subdirectory=".")
    given = {**(stack.environment if stack is not None else {}), **backend.build_environment, **variant.build_environment}
    environment = {name: value.replace("{label}", label) for name, value in given.items()}
    built = []
    for number, part in enumerate((main, *backend.companions)):
        out, folder = scratch / f"dist-{number}", sources / part.subdirectory
        if not folder.is_dir():
            problem = f"the sources have no folder {part.subdirectory}"
            raise BuildError(f"{problem}; fix the companion {part.distribution} of the backend")
        wheel, sdist = _build(part.distribution, folder, out, variant, builder, environment)
        if builder.rules.repair:
            wheel = builder.repair(wheel, scratch / f"repaired-{number}")
        built.append(BuiltWheel(wheel, sdist, part, _package_folder(folder, part.import_name)))
    return built


def _build(
    distribution: str, folder: Path, out: Path, variant: Variant, builder: Builder, environment: dict[str, str]
) -> tuple[Path, Path]:
    done = builder.build(folder, out, variant.python, environment)
    made = [path for path in sorted(out.glob("*")) if path.is_file() and not path.is_symlink()]
    wheels = [path for path in made if path.name.endswith(".whl")]
    sdists = [path for path in made if path.name.endswith(".tar.gz")]
    if done.status != 0 or len(wheels) != 1 or len(sdists) != 1:
        raise BuildError(f"the wheel of {distribution} cannot be built:\n{done.tail}")
    names = f"{wheels[0].name} and {sdists[0].name}"
    try:
        versions = parse_wheel_filename(wheels[0].name)[1], parse_sdist_filename(sdists[0].name)[1]
    except (InvalidWheelFilename, InvalidSdistFilename) as error:
        raise BuildError(f"the build of {distribution} made {names}: {error}; correct its name or version") from None
    if versions[0] != versions[1]:
        raise BuildError(f"{names} have different versions: one of their builds ignores the environment")
    return wheels[0], sdists[0]


def _package_folder(folder: Path, import_name: str | None) -> Path | None:
    """The folder of a package in the sources, in one of the two usual layouts; None if it is somewhere else."""
    if import_name is None:
        return None
    first = import_name.partition(".")[0]  # for a namespace package, its first part
    return next((place for place in (folder / "src" / first, folder / first) if place.is_dir()), None)
