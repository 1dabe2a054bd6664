"""A ramp from its beginning: a sweep, a proposal, a build of what is enabled, and a share that falls."""

import json
from pathlib import Path

import pytest
import yaml

from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night

FILE = "tests/unit/test_unit.py"


@pytest.fixture
def night(tmp_path: Path) -> ToyNight:
    """The toy's six tests, of which none is enabled; two would fail."""
    smoke = {"stage": "smoke", "paths": ["tests/smoke"]}
    unit = {"paths": ["tests/unit"], "scope": {"enabled_file": "enabled.yaml"}}
    night = make_toy_night(tmp_path, suites={"smoke": smoke, "unit": unit})
    enable(night)
    return night


def enable(night: ToyNight, *patterns: str) -> None:
    (night.folder / "enabled.yaml").write_text(yaml.safe_dump({"enabled": list(patterns)}))


def test_a_sweep_finds_what_passes_and_the_next_build_runs_it(night: ToyNight) -> None:
    night.accel_ci("run", "sweep", "--strict")
    status = json.loads(night.accel_ci("status", "--json"))
    assert status["build"].startswith("sweep-")
    assert (status["verdicts"]["expected"], status["verdicts"]["failed"], status["state"]) == (7, 2, "passed")
    proposed = json.loads(night.accel_ci("ramp", "propose", "--to", "100%", "--apply", "--json"))
    assert {test["test"] for test in proposed["tests"]} == {f"{FILE}::test_n[{n}]" for n in (1, 2, 4, 5)}
    assert (proposed["left_out"], proposed["missing"]) == (2, 2)
    night.accel_ci("run", "manual", "--name", "grown", "--strict")
    found = json.loads(night.accel_ci("ramp", "status", "--json"))
    assert (found["enabled"], found["passing"], found["in_scope"]) == (4, 4, 6)
    assert [point["build"] for point in found["trend"]] == ["manual-grown~py3"]
    page = (night.project.home / "hud" / "index.html").read_text()
    assert "<b>66.7 %</b> of 6 tests in scope are enabled" in page
    enable(night, f"{FILE}::test_n[1]")
    output = night.accel_ci("run", "manual", "--name", "fallen", "--strict", status=1)
    assert "the enabled share fell from 66.67% to 16.67%" in output
