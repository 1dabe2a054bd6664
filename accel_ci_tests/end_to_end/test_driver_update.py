"""A new driver of the cards between two builds: the probe tells it, and what breaks with it is infrastructure."""

from __future__ import annotations

from pathlib import Path

from accel_ci.model import DeviceTestResults
from accel_ci.pipelines import DEVICE_TEST_RESULTS
from accel_ci.quality.gather import point_of
from accel_ci.quality.judgement import read_causes
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.toy_night import make_toy_night


def test_what_breaks_with_a_new_driver_is_infrastructure(tmp_path: Path) -> None:
    file = tmp_path / "driver"
    file.write_text("1.0")
    needs_old = f"""
import pathlib, pytest
@pytest.mark.parametrize("n", range(4))
def test_old(n): assert pathlib.Path({str(file)!r}).read_text() == '1.0'
"""
    tests = {
        "backend/tests/smoke/test_smoke.py": "def test_smoke(): pass\n",
        "backend/tests/unit/test_unit.py": f"{needs_old}def test_any(): pass\n",
    }
    tells = f"""printf '{{"driver": "%s"}}\\n' "$(cat {file})\""""
    pool = {"cards": 2, "card_environment": "TOY_CARD", "health_probe": ["sh", "-c", tells]}
    night = make_toy_night(tmp_path / "project", tests, pool=pool)
    night.accel_ci("run", "nightly")
    file.write_text("2.0")
    night.accel_ci("run", "intraday")
    workspace = Workspace(night.project)
    after, before = workspace.manifests.list_builds()
    told = []
    for build in (before, after):
        path = workspace.manifests.path(DEVICE_TEST_RESULTS, build.revision, build.variant)
        found = point_of(workspace.manifests, build)
        assert found is not None
        drivers = workspace.manifests.read(path, DeviceTestResults).drivers
        assert found[0].drivers == drivers
        told.append((list(drivers.values()), found[0].environment))
    assert [drivers for drivers, _ in told] == [["1.0"], ["2.0"]]
    assert told[0][1] != told[1][1], "a new driver is a new environment"
    causes = read_causes(workspace, after)
    assert causes is not None
    old = [f"tests/unit/test_unit.py::test_old[{number}]" for number in range(4)]
    assert [(blame.test, blame.cause) for blame in causes.blames] == [(test, "infra") for test in old]
    assert "environment changed" in night.accel_ci("causes", after.name)
