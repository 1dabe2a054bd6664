"""Copy the libraries that users may not have into a compiled wheel: `auditwheel repair`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from accel_ci.config.settings import Wheels
from accel_ci.errors import BuildError
from accel_ci.process.run import Finished
from accel_ci.wheels.audit import TORCH_LIBRARIES, is_pure, run_module


def repair_wheel(wheel: Path, rules: Wheels, out: Path, environment: Mapping[str, str]) -> Path:
    """Return the wheel with the libraries that `rules` do not allow to be external, and with the platform in its name.

    A wheel without compiled code is returned unchanged. Raises `BuildError` if a library is not found, or the code needs a
    newer platform than the configured one.
    """
    if is_pure(wheel):
        return wheel
    return repaired_wheel(wheel, out, run_module([*repair_arguments(rules, out), str(wheel)], environment))


def repaired_wheel(wheel: Path, out: Path, done: Finished) -> Path:
    """Return the wheel that `auditwheel repair` wrote to `out`. Raises `BuildError` if there is not exactly one."""
    repaired = sorted(out.glob("*.whl"))
    if done.status != 0 or len(repaired) != 1:
        raise BuildError(
            f"{wheel.name} cannot be repaired:\n{done.tail}\nList vendor libraries in wheels.external_libraries, add the "
            "folder of the others to LD_LIBRARY_PATH, or set wheels.platform to the one that the code needs"
        )
    return repaired[0]


def repair_arguments(rules: Wheels, out: Path) -> list[str]:
    """The command line up to the wheel."""
    excluded = [word for pattern in (*TORCH_LIBRARIES, *rules.external_libraries) for word in ("--exclude", pattern)]
    platform = ["--plat", rules.platform, "--only-plat"] if rules.platform else []
    return ["auditwheel", "repair", "--wheel-dir", str(out), *platform, *excluded]
