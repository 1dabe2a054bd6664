"""The modes of a scope's rules, in a worker: what they excuse, and how that is told from what tests excuse themselves."""

from __future__ import annotations

from typing import Any

import pytest

from accel_ci_tests.fixtures.events import Work, attempts, outcomes
from accel_ci_tests.fixtures.suite import Write

SUITE = """
import unittest, pytest
def test_pass(): pass
def test_fail(): assert 0
def test_own_xfail(): pytest.xfail("its own")
def test_own_skip(): pytest.skip("its own")
@pytest.mark.xfail(reason="its own")
def test_marked(): assert 0
class TestUnit(unittest.TestCase):
    def test_pass(self): pass
    def test_fail(self): self.fail("no")
    def test_own_skip(self): self.skipTest("its own")
"""
TESTS = [
    "test_pass", "test_fail", "test_own_xfail", "test_own_skip", "test_marked", "TestUnit::test_pass", "TestUnit::test_fail",
    "TestUnit::test_own_skip",
]  # fmt: skip
RULE = "accel_ci rule: modes[0]: not_implemented"
OWN = {
    "test_own_xfail": ("xfailed", "its own"),
    "test_own_skip": ("skipped", "its own"),
    "TestUnit::test_own_skip": ("skipped", "its own"),
}


@pytest.mark.parametrize(
    ("mode", "passing", "failing"),
    [
        ("xfail", ("xpassed", RULE), ("xfailed", RULE)),
        ("flaky_known", ("passed", None), ("xfailed", RULE)),
        ("xfail_strict", ("failed", f"[XPASS(strict)] {RULE}"), ("xfailed", RULE)),
        ("skip", ("skipped", RULE), ("skipped", RULE)),
    ],
)
def test_mode(mode: str, passing: tuple[str, str | None], failing: tuple[str, str | None], work: Work, write: Write) -> None:
    write("test_a.py", SUITE)
    tests = [f"test_a.py::{test}" for test in TESTS]
    expected: dict[str, Any] = {
        "test_pass": passing, "TestUnit::test_pass": passing, "test_fail": failing, "TestUnit::test_fail": failing,
        "test_marked": failing, **(dict.fromkeys(OWN, ("skipped", RULE)) if mode == "skip" else OWN),
    }  # fmt: skip
    events = work(tests, modes=[{"mode": mode, "reason": "modes[0]: not_implemented", "tests": tests}])
    found = {test.partition("::")[2]: (each["outcome"], each.get("message")) for test, each in attempts(events).items()}
    assert found == expected


def test_only_the_tests_of_a_mode_are_marked(work: Work, write: Write) -> None:
    write("test_a.py", "def test_a(): assert 0\ndef test_b(): assert 0\n")
    modes = [{"mode": "xfail", "reason": "r", "tests": ["test_a.py::test_a", "test_a.py::test_gone"]}]
    events = work(["test_a.py::test_a", "test_a.py::test_b"], modes=modes)
    assert outcomes(events) == {"test_a.py::test_a": "xfailed", "test_a.py::test_b": "failed"}
