"""Make Python environments with uv: resolve exact pins first, then install them.

uv does not read pip's settings. Users of mirrors and offline machines have already configured pip, so this module, and no
other, passes pip's variables on to uv. It also keeps the passwords of indexes from code that uv runs: uv has them while it
resolves and installs wheels, and not while it builds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.parse import urlsplit

import uv
from packaging.utils import canonicalize_name

from accel_ci.errors import BuildError
from accel_ci.process.environment import COMPILERS, PROXIES, clean_environment
from accel_ci.process.own_user import OwnUser
from accel_ci.process.run import Finished, run_tool
from accel_ci.redaction import credentials_in, without_credentials
from accel_ci.secrets import is_secret_name
from accel_ci.source.git_credentials import config_environment, git_credentials, logins_of
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.scratch_folder import scratch_folder

_PIP_TO_UV = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_NO_INDEX": "UV_NO_INDEX",
    "PIP_CERT": "SSL_CERT_FILE",
    "PIP_CONSTRAINT": "UV_CONSTRAINT",
}
_FOLDERS = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "NETRC")
_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
_LOGINS = ("_USERNAME", "_PASSWORD")
_DIGEST = " --hash="
_ADDRESS = " @ "


def uv_environment(base: Mapping[str, str] | None = None, keep: Collection[str] = ()) -> dict[str, str]:
    """The environment for uv: of `base` (default: ours) what packages need, with pip's settings translated.

    uv's own settings take precedence. `keep` names more variables that pass.
    """
    given = os.environ if base is None else base
    own = {name for name in given if name.startswith(("UV_", "PIP_"))} - {"UV_PUBLISH_TOKEN", "UV_PUBLISH_PASSWORD"}
    environment = clean_environment({}, inherited=given, keep={*own, *COMPILERS, *PROXIES, *_FOLDERS, *keep})
    for pip_name, uv_name in _PIP_TO_UV.items():
        if environment.get(pip_name):
            environment.setdefault(uv_name, environment[pip_name])
    if environment.get("PIP_FIND_LINKS"):  # pip separates by spaces, uv by commas
        environment.setdefault("UV_FIND_LINKS", ",".join(environment["PIP_FIND_LINKS"].split()))
    # A link would let the code under test write to uv's cache, and so into other environments; `clone` may make links, too.
    return environment | {"UV_NO_CONFIG": "1", "UV_NO_PROGRESS": "1", "NO_COLOR": "1", "UV_LINK_MODE": "copy"}


@dataclass(frozen=True)
class PackageSource:
    """The source of packages: an environment for uv, and the options of its `pip` commands.

    `keep` names variables that builds may see whatever they hold. `user` is whom code of the sources runs as. `logins` are
    the users and passwords in addresses of requirements and of `torch_index`, by server: uv gets them beside these, so that
    no pin has them. `torch_index` is the variant's, without them. With `only_wheels`, uv builds nothing that it installs.
    """

    environment: Mapping[str, str]
    options: tuple[str, ...] = ()
    keep: frozenset[str] = frozenset()
    user: OwnUser | None = None
    logins: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    torch_index: str | None = None
    only_wheels: bool = False

    @classmethod
    def from_settings(
        cls,
        torch_backend: str | None,
        base: Mapping[str, str] | None = None,
        *,
        keep: Collection[str] = (),
        user: OwnUser | None = None,
        requirements: Sequence[str] = (),
        torch_index: str | None = None,
        only_wheels: bool = False,
    ) -> PackageSource:
        """Take PyTorch from its index for `torch_backend` (uv's name for it), unless the user has configured an index."""
        environment = uv_environment(base, keep)
        own_places = any(environment.get(n) for n in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_NO_INDEX"))
        wanted = torch_backend and not own_places and "UV_TORCH_BACKEND" not in environment
        options = ["--torch-backend", str(torch_backend)] if wanted else []
        addresses = [requirement.partition("@")[2].strip() for requirement in requirements]
        logins = logins_of([*addresses, torch_index or ""])
        place = without_credentials(torch_index) if torch_index else None
        return cls(environment, tuple(options), frozenset(keep), user, logins, place, only_wheels)

    def only_from(self, *options: str) -> PackageSource:
        """Return this source without all indexes and folders but those of the options."""
        left_out = {*_INDEXES, "UV_TORCH_BACKEND"}
        environment = {name: value for name, value in self.environment.items() if name not in left_out}
        return replace(self, environment=environment, options=options)

    @property
    def is_apart(self) -> bool:
        """True if uv may not build what it installs: it has passwords that the built code would see, or is root."""
        hidden = self._secrets() - self.keep
        return self.user is not None or bool(self.logins) or bool(hidden)

    @property
    def builds_nothing(self) -> bool:
        """True if uv installs wheels alone."""
        return self.is_apart or self.only_wheels

    def for_packages(self) -> dict[str, str]:
        """The environment of a uv that resolves or installs, with the passwords of indexes."""
        return {**self.environment, "UV_NO_BUILD": "1"} if self.builds_nothing else dict(self.environment)

    def for_code(self, home: Path) -> dict[str, str]:
        """The environment of code of the sources: without passwords, and with `home`, an empty folder, as its home."""
        hidden = self._secrets() - self.keep
        given = {name: value for name, value in self.environment.items() if name not in hidden}
        for name in _FOLDERS:
            if name not in self.keep:
                given.pop(name, None)
        real = Path(self.environment.get("HOME") or home)
        cache = Path(self.environment.get("XDG_CACHE_HOME") or real / ".cache")
        data = Path(self.environment.get("XDG_DATA_HOME") or real / ".local" / "share")
        given.setdefault("UV_CACHE_DIR", str(cache / "uv"))
        given.setdefault("UV_PYTHON_INSTALL_DIR", str(data / "uv" / "python"))
        if self.is_apart:
            given["UV_CACHE_DIR"] = str(home / ".cache" / "uv")
        return given if "HOME" in self.keep else {**given, "HOME": str(home)}

    def _secrets(self) -> set[str]:
        """The variables that hold the passwords of indexes and proxies, or lead to them."""
        found = {name for name, value in self.environment.items() if credentials_in(value) or is_secret_name(name)}
        found |= {name for name in self.environment if name.startswith("UV_INDEX_") and name.endswith(_LOGINS)}
        if self.environment.get("UV_KEYRING_PROVIDER", "disabled") != "disabled":
            found.add("UV_KEYRING_PROVIDER")
        return found | ({"NETRC"} if self._has_login_in_netrc() else set())

    def _has_login_in_netrc(self) -> bool:
        """Return whether ~/.netrc has the password of a configured index."""
        configured = (self.environment.get(name, "") for name in _INDEXES)
        places = " ".join([*configured, self.torch_index or ""]).replace(",", " ").split()
        file = _netrc_file(self.environment)
        try:
            hosts = netrc(file).hosts if places and file.is_file() else {}
        except (OSError, NetrcParseError):
            return False
        addresses = (place.rpartition("=")[2] if "=" in place.partition("://")[0] else place for place in places)
        return any(urlsplit(address).hostname in hosts for address in addresses)


def run_uv(arguments: Sequence[str], source: PackageSource, *, timeout_s: float, stdin: str = "") -> Finished:
    """Run a uv that resolves or installs packages; the caller checks the status."""
    command = [uv.find_uv_bin(), *without_builds(arguments, source)]
    with _logged_in(source) as environment:
        return run_tool(command, timeout_s=timeout_s, environment=environment, stdin=stdin)


def without_builds(arguments: Sequence[str], source: PackageSource) -> list[str]:
    """Return the arguments of a uv that builds nothing, where it may not. `uv pip` does not read `UV_NO_BUILD`."""
    is_concerned = source.builds_nothing and tuple(arguments[:2]) in (("pip", "compile"), ("pip", "install"))
    return [*arguments[:2], *(["--no-build"] if is_concerned and "--no-build" not in arguments else []), *arguments[2:]]


@contextmanager
def _logged_in(source: PackageSource) -> Iterator[dict[str, str]]:
    """The environment of a uv that has the log-ins of requirements: in a file that is removed, and for its git."""
    environment = source.for_packages()
    if not source.logins:
        yield environment
        return
    with login_file(source) as file:
        git = git_credentials(source.logins)
        yield {**environment, **config_environment(git.settings), **git.variables, **file}


@contextmanager
def login_file(source: PackageSource) -> Iterator[dict[str, str]]:
    """The variable that names a file with the log-ins of requirements to uv, where there are any; the file is removed."""
    if not source.logins:
        yield {}
        return
    with scratch_folder("logins") as folder:
        file = folder / "netrc"
        write_whole_file(file, netrc_with(source).encode(), mode=0o600)
        yield {"NETRC": str(file)}


def netrc_with(source: PackageSource) -> str:
    """The log-ins of requirements, then the user's own, in the format of netrc."""
    own = _netrc_file(source.environment)
    hosts = ((urlsplit(server).hostname, *login) for server, login in source.logins.items())
    lines = [f"machine {host} login {user} password {password}\n" for host, user, password in hosts]
    return "".join(lines) + (own.read_text("utf-8", "replace") if own.is_file() else "")


def _netrc_file(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("NETRC") or Path(environment.get("HOME", "/")) / ".netrc")


def run_code(
    command: Sequence[str], source: PackageSource, home: Path, *, timeout_s: float, folder: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> Finished:  # fmt: skip
    """Run a command that runs code of the sources, with `home` as its home folder; the caller checks the status."""
    home.mkdir(parents=True, exist_ok=True)
    if source.user is not None:
        source.user.give(home)
    environment = {**source.for_code(home), **(extra or {})}
    return run_tool(command, timeout_s=timeout_s, environment=environment, folder=folder, user=source.user)


def resolve(requirements: Sequence[str], python: str, source: PackageSource, *, timeout_s: float) -> str:
    """Resolve `requirements` to exact pins without passwords, one per line. Raises `BuildError` with uv's explanation.

    Exact ones that have a digest keep it, so that nothing else is installed. From a source of `only_wheels`, packages that
    others ask for by an address are refused.
    """
    requirements = [without_credentials(requirement) for requirement in requirements]
    arguments = ["pip", "compile", "-", "--python", python, "--no-header", "--no-annotate", "--quiet", *source.options]
    done = run_uv(arguments, source, timeout_s=timeout_s, stdin="\n".join(requirements))
    if done.status != 0:
        raise BuildError(
            f"{', '.join(requirements)} cannot be resolved for Python {python}:\n{done.tail}\nCheck the requirements of the "
            "variant; for a mirror or an offline machine set PIP_INDEX_URL, PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS"
            + _why_no_build(done, source)
        )
    exact = {requirement.partition(_DIGEST)[0]: requirement for requirement in requirements if _DIGEST in requirement}
    pins = [line for line in done.output.splitlines() if line and not line.startswith("warning:")]
    if source.only_wheels:
        asked = {_name_of(requirement) for requirement in requirements if _ADDRESS in requirement}
        refuse_addresses(pin for pin in pins if _name_of(pin) not in asked)
    return "".join(f"{exact.get(pin, pin)}\n" for pin in pins)


def refuse_addresses(requirements: Iterable[str]) -> None:
    """Raise `BuildError` if a package is asked for by its address, which uv reads with the log-ins of this machine."""
    named = [without_credentials(each) for each in requirements if _ADDRESS in each]
    if named:
        raise BuildError(
            f"packages are asked for by their addresses: {', '.join(named)}; only those of indexes are allowed "
            "(wheels.only_wheels)"
        )


def _name_of(requirement: str) -> str:
    return canonicalize_name(re.split(r"[\s\[@]", requirement, maxsplit=1)[0])


def package_of(pin: str) -> str:
    """Return the package of a line of pins as tables and scripts show it: without its digest, marker and password."""
    return without_credentials(pin.partition(_DIGEST)[0].split(";")[0].strip())


def create(folder: Path, python: str, pins: str, source: PackageSource, *, timeout_s: float, compiled: bool = False) -> Path:
    """Create a virtual environment with exactly `pins`, and return its interpreter. Raises `BuildError`.

    With `compiled`, it has the byte code of all packages, so that nobody needs to write any there later.
    """
    done = run_uv(["venv", "--python", python, "--clear", str(folder)], source, timeout_s=timeout_s)
    if done.status != 0:
        raise BuildError(f"an environment with Python {python} cannot be created:\n{done.tail}")
    interpreter = folder / "bin" / "python"
    arguments = ["pip", "install", "--python", str(interpreter), "-r", "-", "--no-deps", *source.options]
    arguments += ["--compile-bytecode"] if compiled else []
    done = run_uv(arguments, source, timeout_s=timeout_s, stdin=pins)
    if done.status != 0:
        raise BuildError(f"the packages cannot be installed:\n{done.tail}{_why_no_build(done, source)}")
    return interpreter


def _why_no_build(done: Finished, source: PackageSource) -> str:
    """Explain why a package was not built from its sdist."""
    if not source.builds_nothing or not re.search(
        r"no-build|building source distributions?\b.*\bis disabled", done.output, re.I
    ):
        return ""
    return (
        "\nPackages are not built from source here, since their builds would see the password of an index or run as root, "
        "or nobody has looked at them (wheels.only_wheels); offer a wheel, or name the variable of the index in "
        "wheels.pass_environment"
    )
