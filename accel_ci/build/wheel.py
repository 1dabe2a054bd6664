"""The backend's wheel and sdist, built in isolation from a clean copy of the sources, and reused while nothing changed."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from packaging.utils import parse_sdist_filename, parse_wheel_filename
from pydantic import TypeAdapter

from accel_ci.artifacts import ArtifactStore
from accel_ci.build.environment import PackageSource, run_uv
from accel_ci.build.wheel_checks import check_wheel
from accel_ci.config import Settings, Variant
from accel_ci.errors import AccelCiError, BuildError
from accel_ci.model import Source, Wheel

_WHEEL = TypeAdapter(Wheel)


def build_wheel(
    settings: Settings, variant: Variant, source: Source, sources: Path, artifacts: ArtifactStore, cache: Path
) -> Wheel:
    """Build and check the wheel of a variant, or give back the one that was built from the same inputs.

    `uv build` is the front end: unlike `python -m build` it builds with the variant's Python, not with ours. Raises
    `BuildError` when the build fails; faults that checks find are in the result.
    """
    started = time.monotonic()
    inputs = {
        "source": source.tree or source.sha,
        "label": source.label,
        "environment": settings.backend.build_environment,
        "variant": variant.model_dump(mode="json"),
        "backend": settings.backend.model_dump(mode="json"),
    }
    manifest = cache / f"{hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()}.json"
    reused = _reuse(manifest, artifacts)
    if reused is not None:
        return reused
    packages = PackageSource.from_settings(variant.torch_backend)
    with tempfile.TemporaryDirectory(prefix="accel-ci-wheel-") as scratch_name:
        scratch = Path(scratch_name)
        wheel_file, sdist_file = _build(settings, variant, source, sources, scratch, packages)
        name, version, _, _ = parse_wheel_filename(wheel_file.name)
        checks = check_wheel(wheel_file, sdist_file, settings, variant, source, packages, scratch)
        wheel = Wheel(
            str(name),
            str(version),
            artifacts.put(wheel_file),
            artifacts.put(sdist_file),
            checks,
            reused=False,
            work_s=round(time.monotonic() - started, 3),
        )
    if all(check.passed for check in checks):
        cache.mkdir(parents=True, exist_ok=True)
        manifest.write_bytes(_WHEEL.dump_json(wheel, indent=1))
    return wheel


def _reuse(manifest: Path, artifacts: ArtifactStore) -> Wheel | None:
    try:
        wheel = _WHEEL.validate_json(manifest.read_bytes())
        artifacts.path(wheel.wheel), artifacts.path(wheel.sdist)
    except (OSError, ValueError, AccelCiError):  # never built, of another version of this program, or cleaned away
        return None
    return replace(wheel, reused=True, work_s=0.0)


def _build(
    settings: Settings, variant: Variant, source: Source, sources: Path, scratch: Path, packages: PackageSource
) -> tuple[Path, Path]:
    copy, out = scratch / "sources", scratch / "dist"
    shutil.copytree(sources, copy, symlinks=True)
    extra = {name: value.replace("{label}", source.label) for name, value in settings.backend.build_environment.items()}
    done = run_uv(
        ["build", "--sdist", "--wheel", "--python", variant.python, "--out-dir", str(out), str(copy)],
        replace(packages, environment={**packages.environment, **extra}),
        timeout_s=settings.limits.build_seconds,
    )
    wheels, sdists = sorted(out.glob("*.whl")), sorted(out.glob("*.tar.gz"))
    if done.status != 0 or len(wheels) != 1 or len(sdists) != 1:
        raise BuildError(f"the wheel of {settings.backend.distribution} cannot be built:\n{done.tail}")
    if parse_wheel_filename(wheels[0].name)[1] != parse_sdist_filename(sdists[0].name)[1]:
        raise BuildError(f"{wheels[0].name} and {sdists[0].name} differ in version: one of them ignores the environment")
    return wheels[0], sdists[0]
