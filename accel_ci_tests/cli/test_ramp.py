"""The commands `ramp status` and `ramp propose` on builds that are on disk."""

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
import yaml

from accel_ci.config.settings import Project
from accel_ci.ramp.enabled_file import read_enabled
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.project import Run
from accel_ci_tests.fixtures.scoped_builds import NOON, op_rows, ramp_sections, write_build

OPS = [f"op{number}" for number in range(10)]


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    """A project whose two builds enabled 2 of 40 tests; one op failed when a build swept it."""
    project = make_project(**ramp_sections(), ramp={"window_days": 3650})
    workspace = Workspace(project)
    rows = op_rows(OPS, ["float32", "int64", "bool", "float16"])
    swept = {row["test"]: "failed" if row["op"] == "op3" else "passed" for row in rows if "float32" in row["dtypes"]}
    write_build(workspace, 18, rows, swept)  # type: ignore[arg-type]
    for row in rows[:2]:
        row["status"] = "enabled"
    write_build(workspace, 19, rows, {row["test"]: "passed" for row in rows[:2]})
    assert datetime.now(timezone.utc) > NOON
    return project


def test_status_tells_the_share_and_what_the_next_stage_needs(project: Project, accel_ci: Run) -> None:
    shown = json.loads(accel_ci("ramp", "status", "--json").stdout)
    assert (shown["collected"], shown["in_scope"], shown["enabled"], shown["passing"]) == (40, 40, 2, 2)
    assert (shown["share"], shown["stage"], shown["ops"], shown["ops_enabled"]) == (0.05, "nightly", 10, 1)
    assert (shown["next"]["name"], shown["next"]["target"], shown["next"]["tests_to_enable"]) == ("quarter", 10, 8)
    assert [point["enabled"] for point in shown["trend"]] == [0, 2]
    text = accel_ci("ramp", "status").stdout
    assert "2 (5.00% of those in scope)" in text
    assert "accel-ci ramp propose --to 25%" in text


def test_a_stage_is_reached_with_its_share_and_its_cards(project: Project, accel_ci: Run) -> None:
    shown = json.loads(accel_ci("stage", "--json").stdout)
    assert (shown["share"], shown["cards"]) == (0.05, 2)
    assert [(each["name"], each["has_share"], each["has_cards"]) for each in shown["stages"]] == [
        ("first-cards", True, False), ("nightly", True, False), ("quarter", False, False), ("half", False, False),
        ("pull-requests", False, False),
    ]  # fmt: skip
    following = shown["next"]
    assert (following["name"], following["more_cards"], following["tests_to_enable"]) == ("first-cards", 22, 0)
    text = accel_ci("stage").stdout
    assert "22 (pool.cards)" in text
    assert text.count("needs cards") == 2
    document = yaml.safe_load(project.config_path.read_text())
    document["ramp"]["stages"] = [
        {"name": "two", "cards": 2, "share": 0.05, "frequency": "nightly"},
        {"name": "three", "cards": 2, "share": 0.25, "frequency": "[hourly]"},
    ]
    project.config_path.write_text(yaml.safe_dump(document))
    following = json.loads(accel_ci("stage", "--json").stdout)["next"]
    assert (following["name"], following["more_cards"], following["tests_to_enable"]) == ("three", 0, 8)
    text = accel_ci("stage").stdout
    assert "reached" in text
    assert "[hourly]" in text


def test_a_proposal_is_applied_for_review(project: Project, accel_ci: Run) -> None:
    proposed = json.loads(accel_ci("ramp", "propose", "--to", "27.5%", "--json").stdout)
    assert (proposed["tests_to_enable"], proposed["missing"], proposed["left_out"]) == (9, 0, 1)
    assert (proposed["ops_before"], proposed["ops_after"], proposed["ops_left"]) == (1, 10, [])
    path = project.root / "scope" / "enabled.yaml"
    assert not path.exists()
    assert "9 new lines" in accel_ci("ramp", "propose", "--to", "27.5%", "--apply").stdout
    assert read_enabled(path) == sorted(test["test"] for test in proposed["tests"])


def test_a_budget_in_card_hours_is_kept(project: Project, accel_ci: Run) -> None:
    proposed = json.loads(
        accel_ci("ramp", "propose", "--to", "100%", "--card-hours", "0.001", "--suite", "upstream", "--json").stdout
    )
    assert 0 < proposed["card_hours"] <= 0.001
    assert proposed["tests_to_enable"] == 3
    assert proposed["missing"] == 35


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("propose", "--to", "0.25"), "write one such as 25%"),
        (("propose", "--to", "120%"), "write one such as 25%"),
        (("status", "--suite", "nope"), "there is no suite 'nope'"),
        (("status", "--variant", "nope"), "there is no variant 'nope'"),
    ],
)
def test_mistakes_are_named(project: Project, accel_ci: Run, arguments: tuple[str, ...], says: str) -> None:
    done = accel_ci("ramp", *arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_without_a_finished_build_it_is_said_how_to_make_one(
    make_project: Callable[..., Project], accel_ci: Run, tmp_path: Path
) -> None:
    make_project(**ramp_sections())
    done = accel_ci("ramp", "status")
    assert (done.returncode, "accel-ci run nightly" in done.stderr) == (2, True)
