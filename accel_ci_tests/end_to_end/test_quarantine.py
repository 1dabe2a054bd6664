"""A whole nightly with tests in quarantine: a muted one fails and gates nothing, a disabled one does not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accel_ci.model import Build
from accel_ci.results.store import open_results
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.stored_attempts import all_verdicts
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night

FAILS = [f"tests/unit/test_unit.py::test_n[{number}]" for number in (0, 3)]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> ToyNight:
    quality = {"quarantine": {"file": "quarantine.yaml"}}
    return make_toy_night(tmp_path_factory.mktemp("quarantine"), fail_run_on=["failed"], quality=quality)


def verdicts(night: ToyNight, build: Build) -> dict[str, str]:
    found = all_verdicts(open_results(night.project), build)
    return {each.test: each.verdict for each in found if each.test in FAILS}


def newest(night: ToyNight) -> Build:
    return next(iter(ManifestStore(night.project.home).list_builds()))


def test_a_nightly_passes_whose_failures_are_in_quarantine_and_only_then(night: ToyNight) -> None:
    output = night.accel_ci("run", "manual", "--name", "red", status=1)
    assert "the setting 'fail_run_on' makes the run fail" in output
    muted, disabled = FAILS
    night.accel_ci("quarantine", "add", muted, "--suite", "unit", "--reason", "a race")
    night.accel_ci("quarantine", "add", disabled, "--suite", "unit", "--reason", "hangs", "--state", "disabled")
    night.accel_ci("run", "manual", "--name", "green")
    build = newest(night)
    assert verdicts(night, build) == {muted: "failed", disabled: "skipped"}
    assert "1, 1 of them in quarantine" in night.accel_ci("status", build.name)
    status = json.loads(night.accel_ci("status", build.name, "--json"))
    assert status["muted"] == [f"unit: {muted}"]
    night.accel_ci("quarantine", "remove", muted, "--suite", "unit")
    night.accel_ci("run", "manual", "--name", "red-again", status=1)
    assert verdicts(night, newest(night)) == {muted: "failed", disabled: "skipped"}


def test_a_feed_lists_what_is_disabled(night: ToyNight) -> None:
    [folder] = (Path(night.project.home) / "quality" / "feeds").iterdir()
    about = json.loads((folder / "feed.json").read_text())
    assert about["disabled"] == 0, "a test outside of a class has no name of PyTorch's"
    assert about["tests"] > 0
