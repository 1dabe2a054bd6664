"""Check wheels by their files, and by installing them. Each check is a function that returns a `CheckResult`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

from accel_ci.config.settings import Companion, Settings, Variant
from accel_ci.errors import BuildError
from accel_ci.model import CheckResult
from accel_ci.wheels.audit import AUDIT_NAMES, audit_wheel, check_result_of
from accel_ci.wheels.front_end import Builder
from accel_ci.wheels.uv_environment import package_of, resolve

CHECK_NAMES = (*AUDIT_NAMES, "identity", "clean_install", "dependencies", "imports", "entry_points")
"""The checks of `check_wheels`, in its order."""

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


@dataclass(frozen=True)
class BuiltWheel:
    """A wheel with its sdist and the settings of its part of the backend; `package` is its folder in the sources."""

    wheel: Path
    sdist: Path
    part: Companion
    package: Path | None = None


def check_wheels(
    built: Sequence[BuiltWheel], settings: Settings, variant: Variant, label: str, builder: Builder
) -> tuple[CheckResult, ...]:
    """Run all checks, in the order of `CHECK_NAMES`, each on all wheels, which are installed together.

    `label` is the state of the sources that versions name where builds are told it, and empty for public versions. If the
    installation fails, so do the checks that need it, with that reason.
    """
    rules = settings.wheels_of(variant)
    is_told = bool(settings.backend.build_environment or variant.build_environment)
    environment = builder.packages.for_code(builder.home)
    of_each = [
        (
            *audit_wheel(each.wheel, rules, environment, each.sdist, each.package),
            _check_identity(each, label, is_told=is_told),
        )
        for each in built
    ]
    return (*_merge(built, of_each), *_check_installed(built, variant, settings, builder))


def _merge(built: Sequence[BuiltWheel], of_each: Sequence[tuple[CheckResult, ...]]) -> Iterator[CheckResult]:
    """Merge the results of each check on all wheels; findings name the wheel if there are several."""
    for results in zip(*of_each, strict=True):
        if len(results) == 1:
            yield results[0]
            continue
        named = list(zip((each.part.distribution for each in built), results, strict=True))
        shown = [pair for pair in named if not pair[1].passed] or named
        summary = "; ".join(f"{name}: {result.summary}" for name, result in shown)
        findings = tuple(f"{name}: {finding}" for name, result in named for finding in result.findings)
        warnings = tuple(f"{name}: {warning}" for name, result in named for warning in result.warnings)
        yield CheckResult(results[0].name, all(result.passed for result in results), summary, findings, warnings)


def _check_installed(
    built: Sequence[BuiltWheel], variant: Variant, settings: Settings, builder: Builder
) -> list[CheckResult]:
    imports = "\n".join(f"import {each.part.import_name}" for each in built if each.part.import_name)
    entry_points = [entry_point for each in built for entry_point in each.part.entry_points]
    checks: dict[str, Callable[[str], Sequence[str]]] = {
        "dependencies": lambda python: ["uv", "pip", "check", "--python", python],
        "imports": lambda python: [python, "-I", "-c", imports],
        "entry_points": lambda python: [python, "-I", "-c", _ENTRY_POINT_PROBE, *entry_points],
    }
    limit, packages = settings.limits.install_seconds, builder.packages
    installing, running = replace(builder, timeout_s=limit), replace(builder, timeout_s=_TOOL_TIMEOUT_S)
    requirements = [*(f"{each.part.distribution} @ {each.wheel.as_uri()}" for each in built), variant.torch]
    try:
        pins = resolve(requirements, variant.python, packages, timeout_s=limit)
        python = installing.create(variant.python, pins)
    except BuildError as error:
        failed = CheckResult("clean_install", False, "cannot be installed", tuple(str(error).splitlines()))
        return [failed, *(CheckResult(name, False, "not checked: the wheel cannot be installed") for name in checks)]
    installed = CheckResult("clean_install", True, f"installed with Python {variant.python} and {package_of(variant.torch)}")
    return [installed, *(check_result_of(name, running.run_installed(command(python))) for name, command in checks.items())]


def _check_identity(built: BuiltWheel, label: str, *, is_told: bool) -> CheckResult:
    name, version, _, _ = parse_wheel_filename(built.wheel.name)
    findings = []
    if name != canonicalize_name(built.part.distribution):
        findings.append(f"the wheel is named {name}, but configured as {built.part.distribution}")
    if not label and version.local:
        advice = "have the build leave it out where the variable that backend.build_environment sets to '{label}' is empty"
        findings.append(f"version {version} has a local part, and that of a release tag has none; {advice}")
    elif is_told and label not in (version.local or ""):
        advice = "have the build read it from the variable that backend.build_environment sets to '{label}'"
        findings.append(f"version {version} does not contain the source state {label}; {advice}")
    return CheckResult("identity", not findings, findings[0] if findings else f"{name} {version}", tuple(findings))
