"""Publish a backend's disabled tests, slow tests and test times as plain files in PyTorch's own formats.

    <variant>/disabled-tests.json    {"test_x (__main__.TestY)": ["<issue>", []]}
    <variant>/slow-tests.json        {"test_x (__main__.TestY)": seconds}
    <variant>/test-times.json        {"default": {"default": {file: seconds}}}
    <variant>/feed.json              when they were made, and of how many tests

PyTorch's harness reads them by `DISABLED_TESTS_FILE`, `SLOW_TESTS_FILE` and its test times. The platforms of a disabled test
stay empty: PyTorch drops platforms that it does not know, and a file is for one device anyway.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from accel_ci.config.settings import UPSTREAM_TESTS
from accel_ci.quality.quarantine import Entry
from accel_ci.storage.atomic_file import write_whole_file

SLOW_S = 60.0
"""PyTorch calls a test slow that takes longer."""

FEED = "feed.json"
FEEDS = ("disabled-tests.json", "slow-tests.json", "test-times.json", FEED)
"""All files, in the order in which they are written: the last one says that the others are whole."""


def disabled_tests(entries: Iterable[Entry]) -> dict[str, list[Any]]:
    """Return the disabled tests by PyTorch's names. Tests outside of classes have none, and are left out."""
    return {
        name: [entry.issue or entry.reason, []]
        for entry in entries
        if entry.state == "disabled" and (name := pytorch_name(entry.test)) is not None
    }


def slow_tests(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the tests that take over `SLOW_S`, with their seconds."""
    return {
        name: round(each, 3)
        for test, each in sorted(seconds.items())
        if each > SLOW_S and (name := pytorch_name(test)) is not None
    }


def test_times(seconds: Mapping[str, float]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the seconds of each file: the sum over its tests."""
    files: defaultdict[str, float] = defaultdict(float)
    for test, each in seconds.items():
        files[test.partition("::")[0].removeprefix(f"{UPSTREAM_TESTS}/test/").removesuffix(".py")] += each
    return {"default": {"default": {file: round(files[file], 3) for file in sorted(files)}}}


test_times.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it for its name


def pytorch_name(test: str) -> str | None:
    """Return the name of a test as PyTorch's lists have it, None for one outside of a class."""
    front, _, _ = test.partition("[")
    parts = front.split("::")
    return f"{parts[-1]} (__main__.{parts[-2]})" if len(parts) > 2 else None


def write_feeds(folder: Path, entries: Iterable[Entry], seconds: Mapping[str, float], now: datetime) -> Path:
    """Write the files of a device and return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    disabled, slow, times = disabled_tests(entries), slow_tests(seconds), test_times(seconds)
    about = {
        "made_at": now.isoformat(timespec="seconds"),
        "tests": len(seconds),
        "disabled": len(disabled),
        "slow": len(slow),
    }
    for name, content in zip(FEEDS, (disabled, slow, times, about), strict=True):
        write_whole_file(folder / name, (json.dumps(content, indent=1) + "\n").encode())
    return folder


def feed_fault(folder: Path, now: datetime, oldest_days: float = 2) -> str | None:
    """Say why a feed must not be relied on: missing, unreadable, stale or without tests; None if nothing is wrong."""
    try:
        about = json.loads((folder / FEED).read_text("utf-8"))
        age_s = (now - datetime.fromisoformat(about["made_at"])).total_seconds()
        tests = int(about["tests"])
    except OSError as error:
        return f"{folder / FEED} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError) as error:
        return f"{folder / FEED} is damaged: {error}"
    if age_s > oldest_days * 86400:
        return f"the feed is {age_s / 86400:.1f} days old"
    return None if tests else "the feed has no tests"
