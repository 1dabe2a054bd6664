"""The name of a wheel file: what its parts mean, and which Pythons and platforms its tags admit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, NormalizedName, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from accel_ci.model import CheckResult
from accel_ci.wheels.findings import Findings, shown

TAGS_LIMIT = 1000
"""The largest number of tags of a wheel, with compressed sets of tags expanded."""

_INTERPRETER = re.compile(r"(cp|py|pp)(\d)(\d*)")
_OWN_ABI = re.compile(r"cp\d+(t?)[a-z]*|abi3t?|none|pypy\d+_pp\d+")
_CHARACTERS = re.compile(r"[\w.]+-[\w.!+]+(-\d[\w.]*)?(-[\w.]+){3}\.whl", re.ASCII)
_LINUX = re.compile(r"(?:many|musl)?linux(?:\d+|_\d+_\d+)?_(?P<machine>\w+)")
_NEWEST_MINOR = 40
_STABLE_ABI = {"abi3": (3, 2), "abi3t": (3, 15)}


@dataclass(frozen=True)
class WheelName:
    """The parts of a wheel's name; `build` is empty without a build tag, `tags` are expanded."""

    name: NormalizedName
    version: Version
    build: str
    tags: frozenset[Tag]

    @property
    def machines(self) -> frozenset[str]:
        """The architectures of the Linux platforms among the tags."""
        found = (_LINUX.fullmatch(tag.platform) for tag in self.tags)
        return frozenset(match["machine"] for match in found if match)

    @property
    def systems(self) -> frozenset[str]:
        """The systems that the tags name, such as `linux`; none for `any`."""
        return frozenset(_system(tag.platform) for tag in self.tags if tag.platform != "any")


@dataclass(frozen=True)
class Python:
    """An interpreter that may load a module: `cp` is CPython, `pp` PyPy; `threaded` is CPython without the GIL."""

    kind: str
    version: tuple[int, int]
    threaded: bool = False

    def __str__(self) -> str:
        """Return its name for messages."""
        name = {"cp": "CPython", "pp": "PyPy"}[self.kind]
        return f"{name} {self.version[0]}.{self.version[1]}{'t' if self.threaded else ''}"


def check_name(wheel: Path) -> tuple[CheckResult, WheelName | None]:
    """Check a wheel's file name; its parts are None if it is not a wheel's."""
    found = Findings("file_name")
    try:
        parsed = parse_name(wheel.name)
    except InvalidWheelFilename as error:
        found.fault(f"{shown(str(error).partition(': ')[0])}: {shown(wheel.name)}{_advice(wheel.name)}")
        return found.result(""), None
    written_name, written_version = wheel.name.split("-")[:2]
    if written_name != canonicalize_name(written_name).replace("-", "_"):
        found.warn(f"{wheel.name}: the name in it is not normalised: {parsed.name.replace('-', '_')}")
    if written_version != str(parsed.version):
        found.warn(f"{wheel.name}: the version in it is not normalised: {parsed.version}")
    for tag in sorted(parsed.tags, key=str):
        if not _INTERPRETER.match(tag.interpreter) and tag.interpreter[:2] not in ("gr", "ip", "jy", "ru"):
            found.warn(f"{wheel.name}: no known Python has the tag {tag.interpreter}")
    return found.result(wheel.name), parsed


def parse_name(file_name: str) -> WheelName:
    """Return the parts of a file name. Raises `InvalidWheelFilename`."""
    if number_of_tags("-".join(file_name.removesuffix(".whl").rsplit("-", 3)[1:])) > TAGS_LIMIT:
        raise InvalidWheelFilename(f"More than {TAGS_LIMIT:,} tags")
    name, version, build, tags = parse_wheel_filename(file_name)
    if not _CHARACTERS.fullmatch(file_name):  # `packaging` does not look at those of tags
        raise InvalidWheelFilename("Invalid wheel filename (invalid characters)")
    return WheelName(name, version, "".join(map(str, build)), tags)


def number_of_tags(compressed: str) -> int:
    """Return how many tags a compressed set of them stands for: the product of the sizes of its parts."""
    return prod(len(set(part.split("."))) for part in compressed.split("-"))


def admitted(tag: Tag) -> Iterator[Python]:
    """Return the Pythons on which installers take a wheel with this tag; none for a tag that is not known."""
    interpreter, abi = _INTERPRETER.fullmatch(tag.interpreter), _OWN_ABI.fullmatch(tag.abi)
    if interpreter is None or abi is None:
        return
    kind, major, digits = interpreter[1], int(interpreter[2]), interpreter[3]
    if re.fullmatch(r"cp\d+[a-z]*", tag.abi) and not re.fullmatch(f"{tag.interpreter}[a-z]*", tag.abi):
        return  # one of the pairs of a compressed set of tags that no Python has
    first = int(digits) if digits else 0
    and_newer = kind == "py" or not digits or tag.abi in _STABLE_ABI
    for minor in range(first, (_NEWEST_MINOR if and_newer else first) + 1):
        yield Python("pp" if kind == "pp" else "cp", (major, minor), abi[1] == "t" or tag.abi == "abi3t")


def runs_stable_abi(python: Python, name: str) -> bool:
    """Return True if a Python loads modules whose suffix is `abi3`, or `abi3t`."""
    threaded_too = name == "abi3t" or not python.threaded
    return python.kind == "cp" and python.version >= _STABLE_ABI[name] and threaded_too


def _system(platform: str) -> str:
    prefix = re.match("[a-z]*", platform)
    name = prefix[0] if prefix else ""
    return "linux" if name.endswith("linux") else name


def _advice(file_name: str) -> str:
    if "%" in file_name:
        return "; a character is written as in a URL: name the file as the index does, with + for %2B"
    if not file_name.endswith(".whl"):
        return ""
    return "; it must be NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl"
