"""The pytest session of each suite: its paths, arguments and environment, and the files that PyTorch's own tests need.

PyTorch's tests learn from the environment which device they are instantiated for (`torch.testing._internal`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from accel_ci.config.settings import OWN_TESTS, Device, Settings, Suite
from accel_ci.errors import SourceError
from accel_ci.model import SuiteSession, Trigger

FILES = Path(__file__).parents[1] / "pytorch_tests"
_SHARED = "compared_with_cpu.py"
_DISABLED, _SLOW = f"{OWN_TESTS}/disabled_tests.json", f"{OWN_TESTS}/slow_tests.json"


def session_of(settings: Settings, suite: Suite, sources: Path, trigger: Trigger) -> SuiteSession:
    """Return the session of a suite whose tests are below `sources`, in builds of a trigger."""
    arguments = (() if suite.is_of_pytorch else settings.backend.pytest_args) + suite.pytest_args
    own = _device_environment(settings.device, suite, sources) if suite.is_of_pytorch else {}
    return SuiteSession(
        suite.places, arguments, settings.backend.copy_collected, suite.is_isolated(trigger),
        environment={**own, **suite.environment}, test_timeout_s=suite.test_timeout_seconds,
    )  # fmt: skip


def _device_environment(device: Device | None, suite: Suite, sources: Path) -> dict[str, str]:
    if device is None or suite.instances == "cpu":
        return {"PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu"}
    environment = {
        "ACCEL_CI_DEVICE": device.type,
        "TORCH_TEST_DEVICES": str(sources / OWN_TESTS / "device_base.py"),
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": device.type,
        "PYTORCH_TESTING_DEVICE_FOR_CUSTOM": device.type,  # also tests that name the devices that they are for
    }
    if suite.scope.tolerances:
        rules = ({**rule.criteria, "atol": rule.atol, "rtol": rule.rtol} for rule in suite.scope.tolerances)
        environment["ACCEL_CI_TOLERANCES"] = json.dumps([*rules])
    if device.test_base is not None:
        environment["ACCEL_CI_TEST_BASE"] = str(sources / device.test_base)
    if device.disabled_tests is not None:
        environment["DISABLED_TESTS_FILE"] = str(sources / _DISABLED)
    if device.slow_tests is not None:
        environment["SLOW_TESTS_FILE"] = str(sources / _SLOW)
    return environment


def files_of_pytorch_suites(device: Device | None, suites: Iterable[Suite], sources: Path) -> dict[str, bytes]:
    """Return the files, by their paths, that suites of PyTorch's tests need beside the backend's `sources`.

    Raises `SourceError` when a file that the configuration names cannot be read.
    """
    chosen = [suite for suite in suites if suite.is_of_pytorch]
    if not chosen:
        return {}
    ready = {Path(place).name for suite in chosen if suite.kind != "files" for place in suite.places}
    names = ready | {"device_base.py"} | ({_SHARED} if ready else set())
    files = {f"{OWN_TESTS}/{name}": (FILES / name).read_bytes() for name in sorted(names)}
    if device is not None and device.disabled_tests is not None:
        given = _read(sources, device.disabled_tests, "device.disabled_tests")
        files[_DISABLED] = (json.dumps(disabled_for(device.type, given), indent=1) + "\n").encode()
    if device is not None and device.slow_tests is not None:
        files[_SLOW] = (json.dumps(_read(sources, device.slow_tests, "device.slow_tests")) + "\n").encode()
    return files


def disabled_for(device: str, given: Mapping[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """Return the tests that are disabled for a device, from a file of PyTorch's format, in the form that PyTorch reads.

    An entry has an issue and platforms; that of PyTorch's published file has the issue's number before them. An entry stays
    if it names the device, or no platform. PyTorch itself does not know the device, and would take a list of unknown
    platforms for all of them.
    """
    found: dict[str, tuple[str, list[str]]] = {}
    for test, entry in given.items():
        *_, url, platforms = entry
        if not platforms or device in platforms:
            found[test] = (str(url), [])
    return found


def _read(sources: Path, name: str, key: str) -> dict[str, Any]:
    try:
        content = json.loads((sources / name).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SourceError(f"{key}: {name} in the backend's sources cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise SourceError(f"{key}: {name} must be a JSON object, with tests such as 'test_x (__main__.TestY)' as keys")
    return content
