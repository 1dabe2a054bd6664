"""A wheel's tags against its content: the Pythons, systems and architectures that its compiled files are for.

By file names and headers alone. Symbols and linked libraries are checked with auditwheel and abi3audit in `audit.py`.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from packaging.tags import Tag

from accel_ci.config.settings import Wheels
from accel_ci.model import CheckResult
from accel_ci.wheels.archive import Contents, Member
from accel_ci.wheels.dist_info import admits, requires_python, wheel_fields
from accel_ci.wheels.findings import Findings, shown
from accel_ci.wheels.wheel_name import Python, WheelName, admitted, runs_stable_abi

_BINARY_NAME = re.compile(r"\.(so|dll|dylib|pyd)(\.[\d.]+)?$")
_MODULE = re.compile(
    r"(?P<stem>[^/]+?)\.(?:cpython-(?P<cpython>\d{2,3})(?P<flags>[a-z]*)(?:-(?P<platform>[\w-]+))?"
    r"|(?P<stable>abi3t?)|pypy(?P<pypy>\d{2,3})-pp\d+(?:-(?P<pypy_platform>[\w-]+))?|(?P<other>graalpy[\w-]+))\.so"
    r"|(?P<windows_stem>[^/]+?)(?:\.cp(?P<windows>\d{2,3})(?P<windows_flags>[a-z]*)-(?P<windows_platform>\w+))?\.pyd"
)
_HOST_MACHINES = {  # by ELF machine, class (2: 64 bits) and byte order (1: little endian)
    (62, 2, 1): "x86_64", (3, 1, 1): "i686", (183, 2, 1): "aarch64", (40, 1, 1): "armv7l", (21, 2, 1): "ppc64le",
    (21, 2, 2): "ppc64", (22, 2, 2): "s390x", (243, 2, 1): "riscv64", (258, 2, 1): "loongarch64",
}  # fmt: skip
_TRIPLETS = {"i386": "i686", "powerpc64le": "ppc64le", "powerpc64": "ppc64", "arm": "armv7l"}
_SAME_MACHINE = {"armv6l": "armv7l", "i386": "i686", "i586": "i686"}
_EXECUTABLE, _SHARED = 2, 3
_OLDEST_SHOWN = (3, 10)


def compiled_files(contents: Contents) -> list[str]:
    """Return the files that are compiled for a host: libraries, modules and programs; not what runs on a card."""
    return sorted(
        path for path, member in contents.members.items() if _BINARY_NAME.search(path) or machine_of(member) is not None
    )


def machine_of(member: Member) -> str | None:
    """Return the architecture of an ELF program or library, as tags name it; None for any other file."""
    head = member.head
    if len(head) < 20 or not head.startswith(b"\x7fELF"):
        return None
    kind, machine = struct.unpack_from("<HH" if head[5] == 1 else ">HH", head, 16)
    return _HOST_MACHINES.get((machine, head[4], head[5])) if kind in (_EXECUTABLE, _SHARED) else None


def check_content(contents: Contents, dist_info: str | None, name: WheelName, rules: Wheels) -> CheckResult:
    """Check that what a wheel contains is what its tags and Root-Is-Purelib promise."""
    found = Findings("content")
    compiled = compiled_files(contents)
    _check_places(contents, dist_info, name, compiled, found)
    for path in compiled:
        _check_machine(path, contents.members[path], name, rules, found)
    _check_modules(contents, dist_info, name, found)
    for path in sorted(contents.members):
        if path.startswith("torch/") and name.name != "torch":
            found.fault(f"{shown(path)}: is installed into PyTorch's own package")
    return found.result(f"{len(compiled)} compiled files fit the tags" if compiled else "no compiled files")


def _check_places(
    contents: Contents, dist_info: str | None, name: WheelName, compiled: Sequence[str], found: Findings
) -> None:
    """Compare Root-Is-Purelib and the platform with the presence of compiled files."""
    platforms = sorted({tag.platform for tag in name.tags} - {"any"})
    if platforms and not compiled:
        found.warn(f"the tag is for {', '.join(platforms)}, but nothing in the wheel is compiled")
    if dist_info is None:
        return
    pure = [value.lower() for value in wheel_fields(contents, dist_info, Findings(""))["root-is-purelib"]]
    data = dist_info.removesuffix(".dist-info") + ".data/"
    if pure == ["false"] and not platforms and not compiled:
        found.warn(f"{dist_info}/WHEEL: Root-Is-Purelib is false, but nothing in the wheel is compiled")
    for path in compiled:
        if pure == ["true"] and not path.startswith(data):
            found.fault(f"{shown(path)}: is compiled, but {dist_info}/WHEEL has Root-Is-Purelib: true")
        elif path.startswith(f"{data}purelib/"):
            found.fault(f"{shown(path)}: is compiled, but in the folder for pure Python")


def _check_machine(path: str, member: Member, name: WheelName, rules: Wheels, found: Findings) -> None:
    """Check the architecture of an ELF file."""
    machine = machine_of(member)
    if machine is None or not name.systems or any(fnmatchcase(path, pattern) for pattern in rules.foreign_code):
        return
    wanted = {_SAME_MACHINE.get(each, each) for each in name.machines}
    if machine not in wanted and name.systems <= {"linux", "macosx", "win"}:
        tag = ", ".join(sorted(wanted or name.systems))
        found.fault(f"{shown(path)}: is compiled for Linux on {machine}, but the tag is for {tag} (wheels.foreign_code)")


def _check_modules(contents: Contents, dist_info: str | None, name: WheelName, found: Findings) -> None:
    """Check that each extension module can be imported by every Python that the tags admit."""
    wanted = requires_python(contents, dist_info) if dist_info else None
    demanded: dict[Python, Tag] = {}
    for tag in sorted(name.tags, key=str):
        for python in admitted(tag):
            if wanted is None or admits(wanted, python.version):
                demanded.setdefault(python, tag)
    open_ended = sorted(str(tag) for tag in name.tags if tag.abi == "none" and tag.interpreter.startswith("py"))
    loaders: dict[str, dict[str, Callable[[Python], bool]]] = defaultdict(dict)
    for path, member in contents.members.items():
        folder, _, file = path.rpartition("/")
        if match := _MODULE.fullmatch(file):
            stem = match["stem"] or match["windows_stem"]
            loaders[f"{folder}/{stem}"][path] = _loader(match)
            _check_suffix(path, match, name, found)
        elif member.is_module:
            loaders[f"{folder}/{file.partition('.')[0]}"][path] = _any_python
        if open_ended and (match["stable"] if match else member.is_module):  # not for PyPy, and not without the GIL
            found.fault(f"{shown(path)}: is an extension module, but the tag {open_ended[0]} promises every Python")
    for files in loaders.values():
        _check_module(files, demanded, found)


def _check_module(files: Mapping[str, Callable[[Python], bool]], demanded: Mapping[Python, Tag], found: Findings) -> None:
    """Check the files of one module: each Python must find one that it can load, and each file a Python."""
    lost = [python for python in demanded if not any(loads(python) for loads in files.values())]
    first = sorted(files)[0]
    if lost:
        python = min(lost, key=lambda python: (python.version < _OLDEST_SHOWN, python.version))
        tag = demanded[python]
        found.fault(f"{shown(first)}: {python} cannot import it, but the tag {tag} admits {python}")
        return
    for path, loads in sorted(files.items()):
        if demanded and not any(map(loads, demanded)):
            found.warn(f"{shown(path)}: no Python that the tags admit imports it")


def _check_suffix(path: str, match: re.Match[str], name: WheelName, found: Findings) -> None:
    """Compare the platform in a module's suffix with the tags."""
    if not name.systems:
        return
    suffix = match["platform"] or match["pypy_platform"] or ""
    system = "win" if path.endswith(".pyd") else "macosx" if "darwin" in suffix else "linux" if "linux" in suffix else None
    if system is not None and system not in name.systems:
        found.fault(f"{shown(path)}: is a module for {system}, but the tag is for {', '.join(sorted(name.systems))}")
    elif system == "linux" and name.machines:
        machine = suffix.partition("-")[0]
        if _TRIPLETS.get(machine, machine) not in {_SAME_MACHINE.get(each, each) for each in name.machines}:
            found.fault(f"{shown(path)}: is named for {machine}, but the tag is for {', '.join(sorted(name.machines))}")
        elif suffix.endswith("-musl") and not any("manylinux" not in tag.platform for tag in name.tags):
            found.fault(f"{shown(path)}: is a module for musl, but the tag is for manylinux")


def _loader(match: re.Match[str]) -> Callable[[Python], bool]:
    """Return the test for Pythons that import a module with this suffix."""
    digits = match["cpython"] or match["windows"] or match["pypy"]
    if stable := match["stable"]:
        return lambda python: runs_stable_abi(python, stable)
    if digits:
        kind, version = "pp" if match["pypy"] else "cp", (int(digits[0]), int(digits[1:]))
        threaded = "t" in (match["flags"] or match["windows_flags"] or "")
        return lambda python: python == Python(kind, version, threaded)
    if match["other"]:
        return lambda python: False
    return _any_python


def _any_python(python: Python) -> bool:
    return True
