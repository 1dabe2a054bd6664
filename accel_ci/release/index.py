"""Upload wheels to a package index, once, and check what the index then has.

uv uploads: it asks the index first, skips a file that is there with the same digest, and refuses one that has another
(`uv publish --check-url`). The token reaches it in its environment, never on a command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

from accel_ci.config.release_settings import Index
from accel_ci.config.settings import Project, Variant
from accel_ci.errors import AccelCiError, BuildError
from accel_ci.model import Artifact, RuntimeImage, Wheel
from accel_ci.process.run import Finished
from accel_ci.release.sigstore_client import SUFFIX
from accel_ci.storage.scratch_folder import scratch_folder
from accel_ci.wheels.package_source import packages_of
from accel_ci.wheels.uv_environment import PackageSource, create, run_code, run_uv, uv_environment

_OIDC = ("GITHUB_ACTIONS", "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "GITLAB_CI")
_OIDC_ENDING = "_ID_TOKEN"
"""The variables by which uv's trusted publishing knows GitHub Actions and GitLab; `<AUDIENCE>_ID_TOKEN` is of the latter."""


def upload(
    index: Index,
    wheels: Sequence[Path],
    attestations: Mapping[str, Path] | None = None,
    *,
    dry_run: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> tuple[str, ...]:
    """Upload wheels that the index does not have, and return the names of those; with `dry_run`, upload nothing.

    `attestations` are the files of those that wheels go out with, by the names of the wheels. Raises `AccelCiError` if the
    variable with the token is not set, if the index has other content under a name, or refuses.
    """
    given = environment.get(index.token, "") if index.token is not None else None
    if given == "":
        raise AccelCiError(f"${index.token} is not set, so nothing can be uploaded to {index.upload}; set it to the token")
    oidc = [name for name in environment if name in _OIDC or name.endswith(_OIDC_ENDING)]
    own = uv_environment(environment, oidc if given is None else ())
    own |= {"UV_PUBLISH_TOKEN": given} if given is not None else {}
    command = ["publish", "--publish-url", index.upload, "--check-url", index.simple]
    command += ["--trusted-publishing", "never" if given is not None else "always", *(["--dry-run"] if dry_run else [])]
    # uv must see the index as it is now.
    command += ["--no-cache", "--"]
    with _side_by_side(wheels, attestations or {}) as files:
        done = run_uv([*command, *map(str, files)], PackageSource(own), timeout_s=index.timeout_seconds)
    if done.status != 0:
        raise AccelCiError(f"the wheels cannot be uploaded to {index.upload}:\n{done.tail}{_advice(done)}")
    there = {path.name for path in wheels if f"File {path.name} already exists, skipping" in done.output}
    return tuple(path.name for path in wheels if path.name not in there)


@contextmanager
def _side_by_side(wheels: Sequence[Path], attestations: Mapping[str, Path]) -> Iterator[list[Path]]:
    """Have each attestation beside its wheel, as uv wants them."""
    with scratch_folder("upload") as folder:
        files = {path.name: path for path in wheels}
        files |= {f"{name}{SUFFIX}": attestation for name, attestation in attestations.items()}
        for name, path in files.items():
            (folder / name).symlink_to(path.absolute())
        yield [folder / name for name in files]


def install_from(index: Index, project: Project, variant: Variant, wheel: Wheel, image: RuntimeImage, folder: Path) -> Path:
    """Make a clean environment below `folder` with the wheels that the index has, and return its interpreter.

    The wheels come from the index alone, by the digests of the build; what else the runtime image has is there, too.
    Raises `BuildError` if the index does not have them, or what is installed does not go together.
    """
    packages, limit = packages_of(project.settings, variant), project.settings.limits.install_seconds
    own = pins_of(wheel)
    others = [pin for pin in image.packages if _project_of(pin) not in own]
    python = create(folder / "environment", variant.python, "\n".join(others), packages, timeout_s=limit)
    alone = index_alone(index, packages)
    command = ["pip", "install", "--python", str(python), "--no-deps", "--no-cache", "-r", "-", *alone.options]
    done = run_uv(command, alone, timeout_s=limit, stdin="\n".join(own.values()))
    if done.status != 0:
        raise BuildError(f"{index.simple}: what was published cannot be installed:\n{done.tail}")
    done = run_uv(["pip", "check", "--python", str(python)], packages, timeout_s=limit)
    if done.status != 0:
        raise BuildError(f"{index.simple}: what was installed from there does not go together:\n{done.tail}")
    code = f"import {project.settings.backend.import_name}"
    done = run_code([str(python), "-I", "-c", code], packages, folder / "home", timeout_s=300, extra=image.environment)
    if done.status != 0:
        raise BuildError(f"{index.simple}: what was installed from there does not import:\n{done.tail}")
    return python


def pins_of(wheel: Wheel) -> dict[str, str]:
    """Return, by their projects, the requirements that only the very files of a wheel and its companions meet."""
    return dict(map(_pinned, wheel.wheels))


def index_alone(index: Index, packages: PackageSource) -> PackageSource:
    """Return a source with the index alone, so that no other place can have the same file."""
    alone = packages.only_from()
    return replace(alone, environment={**alone.environment, "UV_DEFAULT_INDEX": index.simple})


def _project_of(pin: str) -> str:
    return canonicalize_name(re.split(r"[\s=<>!~@\[;]", pin, maxsplit=1)[0])


def _pinned(artifact: Artifact) -> tuple[str, str]:
    """Return the project of a wheel, and the requirement that only this very file meets."""
    name, version, _, _ = parse_wheel_filename(artifact.name)
    return name, f"{name}=={version} --hash=sha256:{artifact.sha256}"


def _advice(done: Finished) -> str:
    if "do not match" in done.output:
        return "\nThe index never replaces a file: give the new build another version"
    if "trusted publishing" in done.output:
        return (
            "\nSee that the index trusts this workflow as a publisher of the project, and that the job may prove its "
            "identity (GitHub Actions: the permission `id-token: write`)"
        )
    if "403" in done.output or "401" in done.output:
        return "\nSee that the token may upload this project"
    return ""
