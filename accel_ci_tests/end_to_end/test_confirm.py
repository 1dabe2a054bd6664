"""Failures of real nightlies run again: one whose fault has passed, and one that is broken."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from accel_ci.model import Build
from accel_ci.results.store import open_results
from accel_ci.source.revision import resolve_revision
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.checkout import commit
from accel_ci_tests.fixtures.stored_attempts import to_attempts
from accel_ci_tests.fixtures.toy_night import TESTS, ToyNight, make_toy_night

NIGHTS = 2
FILE = "tests/unit/test_faults.py"
FAULTS = """
from pathlib import Path

STATE = Path({state!r})


def runs_before(name):
    path = STATE / name
    count = len(path.read_text()) if path.exists() else 0
    path.write_text("x" * (count + 1))
    return count


def test_good():
    pass


def test_race():
    assert not (STATE / "fault").exists() or runs_before("race") >= 2, "the lock was taken"


def test_broken():
    assert not (STATE / "fault").exists(), "the result is wrong"
"""


@pytest.fixture
def night(tmp_path: Path) -> ToyNight:
    """Some good nights, and one in which a race and a broken test fail in both attempts."""
    state = tmp_path / "state"
    state.mkdir()
    tests = {**TESTS, "backend/tests/unit/test_unit.py": "", f"backend/{FILE}": FAULTS.format(state=str(state))}
    night = make_toy_night(tmp_path, tests)
    workspace = Workspace(night.project)
    for number in range(NIGHTS + 1):
        commit(tmp_path / "repository", {"backend/NIGHT": f"{number}\n"})
        if number == NIGHTS:
            (state / "fault").touch()
        at = datetime.now(timezone.utc) - timedelta(days=NIGHTS - number, seconds=1)
        revision = resolve_revision(night.project, "nightly", workspace.manifests.revision, now=at)
        night.accel_ci("run", "nightly", "--revision", workspace.manifests.add_revision(revision).key)
    return night


def causes(night: ToyNight, build: str) -> dict[str, Any]:
    found = json.loads(night.accel_ci("causes", build, "--json"))
    return {failure["test"].rpartition("::")[2]: failure for failure in found["failures"]}


def test_a_fault_that_has_passed_is_told_from_a_broken_test(night: ToyNight) -> None:
    newest = next(iter(Workspace(night.project).manifests.list_builds()))
    before = causes(night, newest.name)
    assert {test: each["retried"] for test, each in before.items()} == {"test_race": False, "test_broken": False}
    planned = night.accel_ci("run", "confirm", newest.name, "--dry-run")
    assert f"{newest.name}: 2 of 2 failures run again, for " in planned
    output = night.accel_ci("run", "confirm", newest.name, "--strict")
    assert "device tests: 2 of 2 failures run again, for " in output
    assert "1 of 2 pass" in (night.project.home / "hud" / "index.html").read_text(), "its failures make no build red"
    again = Build(f"confirm-{newest.revision}", newest.variant)
    after = causes(night, newest.name)
    assert after["test_race"]["cause"] == "flaky"
    assert after["test_broken"]["cause"] in ("backend", "unknown")
    assert after["test_broken"]["probability"] > before["test_broken"]["probability"]
    assert all(again.name in str(each["evidence"]) for each in after.values())
    store = open_results(night.project)
    attempts = [each for stored in store.suites(build=again) for each in to_attempts(store.read(stored))]
    assert {each.suite for each in attempts} == {"unit"}
    assert {each.test.rpartition("::")[2] for each in attempts} == {"test_race", "test_broken"}
    page = (night.project.home / "hud" / "index.html").read_text()
    assert f"runs failures of {newest.revision} again" in page
    assert {each.round for each in attempts} >= {1, 2}, "each run is in a process of its own"
