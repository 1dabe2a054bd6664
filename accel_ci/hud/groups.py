"""Tests grouped by the signature of their message, so that one cause takes one place on the page."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from accel_ci.model import TestVerdict
from accel_ci.results.signature import signatures


@dataclass(frozen=True)
class TestGroup:
    """Tests whose messages have one signature; `new` of them fail since the build before. `message` is the first's."""

    __test__ = False

    message: str | None
    tests: tuple[TestVerdict, ...]
    new: int


def group_tests(tests: Sequence[TestVerdict], new: Collection[tuple[str, str]] = ()) -> tuple[TestGroup, ...]:
    """Group tests by signature: groups with new failures first, then the largest. A group keeps the order of its tests."""
    found: dict[str | None, list[TestVerdict]] = {}
    messages = pa.array([test.message for test in tests], pa.string())
    for test, signature in zip(tests, signatures(messages).to_pylist(), strict=True):
        found.setdefault(signature, []).append(test)
    groups = [
        TestGroup(of_one[0].message, tuple(of_one), sum((test.suite, test.test) in new for test in of_one))
        for of_one in found.values()
    ]
    return tuple(sorted(groups, key=lambda group: (not group.new, -len(group.tests))))
