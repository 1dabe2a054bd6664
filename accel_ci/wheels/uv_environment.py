"""Make Python environments with uv: resolve exact pins first, then install them.

uv does not read pip's settings. Users of mirrors and offline machines have already configured pip, so this module, and no
other, passes pip's variables on to uv.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import uv

from accel_ci.errors import BuildError
from accel_ci.process.run import Finished, run_tool

_PIP_TO_UV = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_NO_INDEX": "UV_NO_INDEX",
    "PIP_CERT": "SSL_CERT_FILE",
    "PIP_CONSTRAINT": "UV_CONSTRAINT",
}


def uv_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for uv: `base` (default: ours) with pip's settings translated; uv's own settings take precedence."""
    environment = dict(os.environ if base is None else base)
    for pip_name, uv_name in _PIP_TO_UV.items():
        if environment.get(pip_name):
            environment.setdefault(uv_name, environment[pip_name])
    if environment.get("PIP_FIND_LINKS"):  # pip separates by spaces, uv by commas
        environment.setdefault("UV_FIND_LINKS", ",".join(environment["PIP_FIND_LINKS"].split()))
    environment.pop("VIRTUAL_ENV", None)
    environment.pop("PYTHONPATH", None)
    # A link would let the code under test write to uv's cache, and so into other environments; `clone` may make links, too.
    return environment | {"UV_NO_CONFIG": "1", "UV_NO_PROGRESS": "1", "NO_COLOR": "1", "UV_LINK_MODE": "copy"}


@dataclass(frozen=True)
class PackageSource:
    """The source of packages: an environment for uv, and the options of its `pip` commands."""

    environment: Mapping[str, str]
    options: tuple[str, ...] = ()

    @classmethod
    def from_settings(
        cls, torch_backend: str | None, base: Mapping[str, str] | None = None, *, prerelease: bool = False
    ) -> PackageSource:
        """Take PyTorch from its index for `torch_backend` (uv's name for it), unless the user has configured an index."""
        environment = uv_environment(base)
        own_places = any(environment.get(n) for n in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_NO_INDEX"))
        wanted = torch_backend and not own_places and "UV_TORCH_BACKEND" not in environment
        options = ["--torch-backend", str(torch_backend)] if wanted else []
        return cls(environment, (*options, *(["--prerelease", "allow"] if prerelease else [])))


def run_uv(arguments: Sequence[str], source: PackageSource, *, timeout_s: float, stdin: str = "") -> Finished:
    """Run uv; the caller checks the status."""
    return run_tool([uv.find_uv_bin(), *arguments], timeout_s=timeout_s, environment=source.environment, stdin=stdin)


def resolve(requirements: Sequence[str], python: str, source: PackageSource, *, timeout_s: float) -> str:
    """Resolve `requirements` to exact pins, one per line. Raises `BuildError` with uv's explanation."""
    arguments = ["pip", "compile", "-", "--python", python, "--no-header", "--no-annotate", "--quiet", *source.options]
    done = run_uv(arguments, source, timeout_s=timeout_s, stdin="\n".join(requirements))
    if done.status != 0:
        raise BuildError(
            f"{', '.join(requirements)} cannot be resolved for Python {python}:\n{done.tail}\nCheck the requirements of the "
            "variant; for a mirror or an offline machine set PIP_INDEX_URL, PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS"
        )
    return "".join(f"{line}\n" for line in done.output.splitlines() if line and not line.startswith("warning:"))


def create(folder: Path, python: str, pins: str, source: PackageSource, *, timeout_s: float) -> Path:
    """Create a virtual environment with exactly `pins`, and return its interpreter. Raises `BuildError`."""
    done = run_uv(["venv", "--python", python, "--clear", str(folder)], source, timeout_s=timeout_s)
    if done.status != 0:
        raise BuildError(f"an environment with Python {python} cannot be created:\n{done.tail}")
    interpreter = folder / "bin" / "python"
    arguments = ["pip", "install", "--python", str(interpreter), "-r", "-", "--no-deps", *source.options]
    done = run_uv(arguments, source, timeout_s=timeout_s, stdin=pins)
    if done.status != 0:
        raise BuildError(f"the packages cannot be installed:\n{done.tail}")
    return interpreter
