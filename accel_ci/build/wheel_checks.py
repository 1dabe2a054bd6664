"""What must hold of a wheel before anything is built on it. Each check is a function that gives a `CheckResult`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

from accel_ci.build.environment import PackageSource, create, resolve, run_uv
from accel_ci.build.process import Finished, run_tool
from accel_ci.config import Settings, Variant
from accel_ci.errors import BuildError
from accel_ci.model import CheckResult, Source

CHECK_NAMES = ("twine", "check_wheel_contents", "identity", "clean_install", "dependencies", "imports", "entry_points")
"""Every check that `check_wheel` gives a result for, in its order."""

_TOOL_TIMEOUT_S = 300.0
_ENTRY_POINT_PROBE = """
import importlib.metadata, sys
failed = False
for spec in sys.argv[1:]:
    group, _, name = spec.partition(":")
    found = importlib.metadata.entry_points(group=group, name=name)
    if not found:
        failed = True
        print(f"the group {group!r} has no entry point {name!r}")
    for entry_point in found:
        try:
            entry_point.load()
        except Exception as error:
            failed = True
            print(f"{spec} does not load: {type(error).__name__}: {error}")
sys.exit(failed)
"""


def check_wheel(
    wheel: Path, sdist: Path, settings: Settings, variant: Variant, source: Source, packages: PackageSource, scratch: Path
) -> tuple[CheckResult, ...]:
    """All checks, in the order of `CHECK_NAMES`. What stands on a failed installation fails with that reason."""

    def tool(name: str, *command: str) -> CheckResult:
        done = run_tool([sys.executable, "-m", *command], timeout_s=_TOOL_TIMEOUT_S, environment=packages.environment)
        return _judge(name, done)

    results = [
        tool("twine", "twine", "check", "--strict", str(wheel), str(sdist)),
        tool("check_wheel_contents", "check_wheel_contents", str(wheel)),
        _check_identity(wheel, settings, source),
    ]
    installed: dict[str, Callable[[Path], CheckResult]] = {
        "dependencies": lambda python: _judge(
            "dependencies", run_uv(["pip", "check", "--python", str(python)], packages, timeout_s=_TOOL_TIMEOUT_S)
        ),
        "imports": lambda python: _judge(
            "imports", _run_python(python, packages, "-c", f"import {settings.backend.import_name}")
        ),
        "entry_points": lambda python: _judge(
            "entry_points", _run_python(python, packages, "-c", _ENTRY_POINT_PROBE, *settings.backend.entry_points)
        ),
    }
    try:
        python = _install_clean(wheel, settings, variant, packages, scratch / "clean")
    except BuildError as error:
        results.append(CheckResult("clean_install", False, "cannot be installed", tuple(str(error).splitlines())))
        results += [CheckResult(name, False, "not checked: the wheel cannot be installed") for name in installed]
    else:
        results.append(CheckResult("clean_install", True, f"installed with Python {variant.python} and {variant.torch}"))
        results += [check(python) for check in installed.values()]
    return tuple(results)


def _judge(name: str, done: Finished) -> CheckResult:
    lines = tuple(line for line in done.tail.splitlines() if line.strip())
    last = lines[-1] if lines else "no output"
    return CheckResult(name, done.status == 0, "passed" if done.status == 0 else last, () if done.status == 0 else lines)


def _check_identity(wheel: Path, settings: Settings, source: Source) -> CheckResult:
    name, version, _, _ = parse_wheel_filename(wheel.name)
    findings = []
    if name != canonicalize_name(settings.backend.distribution):
        findings.append(f"the wheel is named {name}, the configuration says {settings.backend.distribution}")
    if settings.backend.build_environment and source.label not in (version.local or ""):
        findings.append(
            f"version {version} does not carry the source state {source.label}; let the build read it from the variable "
            "that backend.build_environment sets to '{label}'"
        )
    return CheckResult("identity", not findings, findings[0] if findings else f"{name} {version}", tuple(findings))


def _install_clean(wheel: Path, settings: Settings, variant: Variant, packages: PackageSource, folder: Path) -> Path:
    prerelease, limit = variant.torch_source == "main", settings.limits.install_seconds
    requirements = [f"{settings.backend.distribution} @ {wheel.as_uri()}", variant.torch]
    pins = resolve(requirements, variant.python, packages, prerelease=prerelease, timeout_s=limit)
    return create(folder, variant.python, pins, packages, prerelease=prerelease, timeout_s=limit)


def _run_python(python: Path, packages: PackageSource, *arguments: str) -> Finished:
    with tempfile.TemporaryDirectory(prefix="accel-ci-") as elsewhere:  # so that nothing is imported from the sources
        return run_tool(
            [str(python), "-I", *arguments],
            timeout_s=_TOOL_TIMEOUT_S,
            environment=packages.environment,
            folder=Path(elsewhere),
        )
