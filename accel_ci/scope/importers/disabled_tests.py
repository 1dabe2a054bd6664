"""Lists of disabled tests as JSON: PyTorch's own, and torch_npu's.

    {"test_x (__main__.TestY)": ["<issue number>", "<url>", ["linux", …]]}     the published list
    {"test_x (__main__.TestY)": ["<url>", ["linux", …]]}                       a local list, torch_npu's
    {"test/test_x.py::TestY::test_x": {"category": …, "reason": …, "issue": …}}

As in PyTorch, a class matches by its beginning, and a method with or without the suffixes of device and dtype. A test is
disabled on the platforms in its list, and everywhere where that names none that PyTorch knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from accel_ci.errors import ConfigError
from accel_ci.scope.importers.imported import DeviceNames, Imported, grouped

_PLATFORMS = frozenset({
    "mac", "macos", "win", "windows", "linux", "rocm", "xpu", "asan", "dynamo", "dynamo_wrapped", "inductor", "slow"
})  # fmt: skip
"""The platforms that PyTorch knows; others in a list count as none."""

_NAME = re.compile(r"(\S+) \((?:[\w.]*\.)?(\w+)\)")


def read_disabled_tests(text: str, device: DeviceNames, reason: str, platform: str = "linux") -> Imported:
    """Read a list of disabled tests as rules that put them out of scope. Raises `ConfigError` for something else."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError("not a list of disabled tests: must be an object with the names of tests as keys")
    left_out: list[str] = []
    rules = grouped(_rules(content, device, reason, platform, left_out), "methods")
    by_id = grouped(_rules_by_id(content, device, reason), "tests")
    return Imported({"exclude": [*rules, *by_id]}, len(content), tuple(left_out))


def _rules(
    content: Mapping[str, Any], device: DeviceNames, reason: str, platform: str, left_out: list[str]
) -> Iterator[tuple[dict[str, Any], str]]:
    for name, about in content.items():
        if "::" in name:
            continue
        found = _NAME.fullmatch(name)
        if found is None or not isinstance(about, list) or not about:
            left_out.append(f"{name}: not of the form 'method (__main__.Class)' with a list")
            continue
        named = about[-1] if isinstance(about[-1], list) else []
        platforms = [each for each in named if each in _PLATFORMS]
        if platforms and platform not in platforms:
            left_out.append(f"{name}: disabled on {', '.join(platforms)} only")
            continue
        texts = [each for each in about if isinstance(each, str) and each]
        issue = next((each for each in texts if each.startswith(("https://", "http://"))), None)
        words = [each for each in texts if each != issue and not each.isdigit()]
        words += [each for each in named if isinstance(each, str) and each and each not in _PLATFORMS]
        method, owner = found.groups()
        yield {"classes": tuple(device.classes(owner)), **_because(reason, "; ".join(words), issue)}, device.method(method)


def _rules_by_id(content: Mapping[str, Any], device: DeviceNames, reason: str) -> Iterator[tuple[dict[str, Any], str]]:
    for name, about in content.items():
        if "::" not in name:
            continue
        words = [about.get(key) for key in ("category", "reason")] if isinstance(about, dict) else []
        issue = about.get("issue") if isinstance(about, dict) else None
        issue = issue if isinstance(issue, str) and issue.startswith(("https://", "http://")) else None
        file, *parts = name.split("::")
        owners = [pattern for part in parts[:-1] for pattern in device.classes(part)]
        pattern = "::".join(  # PyTorch's files are below a folder of the sources
            [f"*{file}", *(each if each.endswith("*") else f"{each}*" for each in owners), device.method(parts[-1])]
        )
        yield _because(reason, ": ".join(str(each) for each in words if each), issue), pattern


def _because(reason: str, text: str, issue: str | None) -> dict[str, Any]:
    return {"reason": reason, **({"text": text} if text else {}), **({"issue": issue} if issue else {})}
