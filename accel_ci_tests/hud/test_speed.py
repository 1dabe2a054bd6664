"""The page of speed: the parts of a build's wall time sum to it, and bars are drawn to one scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accel_ci.hud.records import BuildRecord
from accel_ci.hud.site import write_site
from accel_ci.hud.speed import PARTS, Times, make_speed, speed_of
from accel_ci.model import Artifact, Build, Ledger, Wheel
from accel_ci.pipelines import STAGES
from accel_ci_tests.hud.samples import NOW, VARIANTS, flakiness, ledger, workspace_of

NOTHING = Artifact("0" * 64, "none.whl", 2)
WHEEL = Wheel("torch_emu", "1.0", NOTHING, NOTHING, (), False, 1.0)


def record(account: Ledger, day: int) -> BuildRecord:
    return BuildRecord(Build(f"nightly-202611{day}", VARIANTS[0]), STAGES, changed_at=NOW, ledger=account, wheel=WHEEL)


def test_the_parts_sum_to_the_wall_time_and_the_rest_is_the_cis_own() -> None:
    short, long = record(ledger({"passed": 5}), 26), record(ledger({"passed": 7}), 27)
    page = make_speed([speed_of(long, Times(100.0, 20.0)), speed_of(short, Times(50.0, None))])
    assert [(build.tests, build.trigger) for build in page.builds] == [(7, "nightly"), (5, "nightly")]
    for build in page.builds:
        assert tuple(build.parts) == PARTS
        assert sum(build.parts.values()) == pytest.approx(build.wall_s)
    first, second = page.builds
    assert (first.parts["queue"], first.parts["wheel"], first.parts["the rest"]) == (20.0, 1.0, 79.0)
    assert page.longest_s == pytest.approx(100.0)
    assert sum(width for _, width in first.bar(page.longest_s).values()) == pytest.approx(100)
    assert sum(width for _, width in second.bar(page.longest_s).values()) == pytest.approx(50)


def test_every_finished_build_of_the_grid_is_there(home: Path, tmp_path: Path) -> None:
    folder = write_site(workspace_of(home), flakiness(), tmp_path / "site", now=NOW).parent
    shown = json.loads((folder / "speed.json").read_text())["builds"]
    finished = {path.parent for path in home.glob("builds/*/*/ledger.json") if "broken" not in path.read_text()}
    assert {(each["build"]["revision"], each["build"]["variant"]) for each in shown} == {
        (path.parent.name, path.name) for path in finished
    }
