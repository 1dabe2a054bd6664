"""The failing tests of a build, grouped by what they fail of: a summary for a person."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from accel_ci.model import Build, TestVerdict
from accel_ci.results.questions import bad_tests
from accel_ci.results.signature import signatures
from accel_ci.results.store import ResultsStore


@dataclass(frozen=True)
class FailingGroup:
    """Tests of a build that do not pass and whose messages have one signature; `message` is that of the first test."""

    message: str | None
    tests: tuple[TestVerdict, ...]


def failing_groups(store: ResultsStore, build: Build, suites: Collection[str]) -> list[FailingGroup]:
    """Group the tests that failed for good, were lost to the infrastructure or did not run; the largest group comes first.

    Raises `AccelCiError` when nothing is stored of one of the suites.
    """
    failing = [test for test in bad_tests(store, build, suites) if test.verdict != "flaky"]
    groups: dict[object, list[TestVerdict]] = {}
    found = signatures(pa.array([test.message for test in failing], pa.string())).to_pylist()
    for test, signature in zip(failing, found, strict=True):
        groups.setdefault((test.verdict, signature), []).append(test)
    ordered = sorted(groups.values(), key=len, reverse=True)
    return [FailingGroup(tests[0].message, tuple(tests)) for tests in ordered]
