"""Stored builds are replayed under other rules: the same builds, what would have been said, and nothing is changed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from accel_ci.cli import main
from accel_ci.config.settings import Project
from accel_ci.errors import AccelCiError
from accel_ci.model import Artifact, Build, SuiteSelection, TestSelection
from accel_ci.pipelines import TEST_SELECTION
from accel_ci.quality.causes import CauseRules
from accel_ci.quality.current_quarantine import update_quarantine
from accel_ci.quality.judgement import judge_new_builds, read_causes
from accel_ci.quality.places import PlaceRules
from accel_ci.quality.played import Move, Played
from accel_ci.quality.quarantine import QuarantineRules
from accel_ci.quality.replay import replay
from accel_ci.quality.rules import CauseWeights, PlaceThresholds, QuarantineThresholds, RuleSet, read_rules, rules_of
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.finished_nights import (
    BROKEN,
    FLAKES,
    NIGHTS,
    RACE,
    STEADY,
    TODAY,
    Told,
    fails,
    write_night,
)

RARE = STEADY[0]
"""A test that is flaky twice, and breaks later."""

BAD_CARD: Told = {test: [("failed", "7", None), ("passed", "1", None), ("passed", "2", None)] for test in STEADY[10:16]}
LOOSE = "quarantine: {mute_above: 0.01}\ncauses: {flaky_share: 0.021}\n"


@pytest.fixture
def workspace(make_project: Callable[..., Project]) -> Workspace:
    return Workspace(make_project(quality={"quarantine": {"automatic": True, "budget": 1.0, "mute_above": 0.07}}))


def day(night: int) -> Any:
    return (TODAY - timedelta(days=NIGHTS - night)).date()


def write_story(workspace: Workspace, night: int) -> Build:
    """A night of two weeks: a race every third night, a rarer flake that breaks in the end, a bad card, a breakage."""
    told: dict[str, Any] = {RACE: FLAKES} if night % 3 == 1 else {}
    if night in (4, 8):
        told[RARE] = FLAKES
    if night in (5, 6):
        told |= BAD_CARD
    if night >= NIGHTS - 2:
        told |= dict.fromkeys([*BROKEN, RARE], fails())
    words = {RARE: "RuntimeError: the op is gone"} if night >= NIGHTS - 2 else {}
    build = write_night(workspace, night, told, backend=night, words=words | dict.fromkeys(BAD_CARD, "tensors differ"))
    selection = TestSelection(Artifact("0" * 64, "selection.json", 2), (SuiteSelection("unit", 50, 50, {}),), 1.0)
    workspace.manifests.write(workspace.manifests.path(TEST_SELECTION, build.revision, build.variant), selection)
    return build


def live(workspace: Workspace) -> Played:
    """The causes, incidents and quarantine that are kept night by night as the builds come."""
    kept, before, incidents = Played(), dict[tuple[str, str, str], str](), Counter[str]()
    for night in range(NIGHTS):
        build, now = write_story(workspace, night), TODAY - timedelta(days=NIGHTS - night)
        incidents = Counter(each.cause for each in judge_new_builds(workspace, now).incidents)
        causes = read_causes(workspace, build) or pytest.fail("it was not judged")
        for blame in causes.blames:
            kept.failures[blame.cause] += 1
            kept.causes[build.name, blame.suite, blame.test] = blame.cause
            if blame.cause == "flaky":
                kept.flaky.add(("py3", *blame.identity))
        for bad in causes.bad:
            kept.places.setdefault(f"{bad.place.kind} {bad.place.name}", []).append(build.name)
        entries = {("py3", *entry.identity): entry for entry in update_quarantine(workspace, now).entries}
        kept.quarantined |= entries.keys()
        new = [entry for key, entry in entries.items() if before.get(key) != entry.state]
        kept.moves += [Move(build.revision, "py3", *e.identity, e.state, "rule", e.reason) for e in new]
        before = {key: entry.state for key, entry in entries.items()}
    kept.incidents = incidents
    return kept


def write_all(workspace: Workspace) -> None:
    for night in range(NIGHTS):
        write_story(workspace, night)


def files_of(folder: Path) -> dict[str, str]:
    """The digest of each file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def run(workspace: Workspace, *arguments: str, first: int = 0, last: int = NIGHTS - 1) -> Result:
    period = ["--from", str(day(first)), "--to", str(day(last))]
    own = ["--config", str(workspace.project.config_path), "quality", "replay", *period, *arguments]
    return CliRunner().invoke(main, own)


@pytest.mark.parametrize("window_days", [30, 6])
def test_todays_rules_give_what_was_kept_night_by_night(make_project: Callable[..., Project], window_days: int) -> None:
    quality = {"window_days": window_days, "quarantine": {"automatic": True, "budget": 1.0, "mute_above": 0.07}}
    workspace = Workspace(make_project(quality=quality))
    kept = live(workspace)
    assert {"backend", "flaky", "infra"} <= kept.failures.keys()
    assert kept.quarantined
    assert kept.places.keys() == {"card host:7"}
    found = replay(workspace, {"today": rules_of(workspace.project.settings)}, day(0), day(NIGHTS - 1))
    assert (found.builds, found.revisions) == (NIGHTS, NIGHTS)
    replayed = found.played["today"]
    assert replayed.causes == kept.causes
    assert replayed.failures == kept.failures
    assert replayed.flaky == kept.flaky
    assert replayed.places == kept.places
    assert replayed.quarantined == kept.quarantined
    assert [move for move in replayed.moves if move.state != "released"] == kept.moves
    if window_days == 30:
        assert replayed.incidents == kept.incidents, "shorter windows forget incidents"


def test_the_nights_before_the_period_prepare_it_and_do_not_count(workspace: Workspace) -> None:
    write_all(workspace)
    today = {"today": rules_of(workspace.project.settings)}
    whole = replay(workspace, today, day(0), day(NIGHTS - 1)).played["today"]
    late = replay(workspace, today, day(8), day(11)).played["today"]
    nights = {f"nightly-{day(night):%Y%m%d}~py3" for night in range(8, 12)}
    assert late.causes == {failure: cause for failure, cause in whole.causes.items() if failure[0] in nights}
    assert late.quarantined == {("py3", "unit", RACE)}
    assert late.moves == [move for move in whole.moves if f"{move.revision}~py3" in nights]
    assert len(late.moves) < len(whole.moves)


def test_looser_rules_mute_more_and_hide_a_breakage(workspace: Workspace, tmp_path: Path) -> None:
    write_all(workspace)
    rules = tmp_path / "loose.yaml"
    rules.write_text(LOOSE)
    result = run(workspace, "--json", "--rules", str(rules))
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    today, loose = found["rules"]["today"], found["rules"]["file"]
    assert today["quarantined"] == [["py3", "unit", RACE]]
    assert loose["quarantined"] == [["py3", "unit", RACE], ["py3", "unit", RARE]]
    assert found["difference"]["quarantined_only_after"] == [["py3", "unit", RARE]]
    assert found["difference"]["quarantined_only_before"] == []
    broken = [f"nightly-{day(night):%Y%m%d}~py3" for night in (NIGHTS - 2, NIGHTS - 1)]
    assert loose["hidden"] == [[build, "unit", RARE, "backend", "muted"] for build in broken]
    assert today["hidden"] == []
    missed = [(one["build"], one["test"], one["why"]) for one in found["difference"]["missed_after"]]
    assert missed == [(build, RARE, "muted") for build in broken]
    assert found["difference"]["missed_before"] == []
    shown = run(workspace, "--rules", str(rules))
    assert shown.exit_code == 0, shown.stderr
    assert "missed by loose.yaml" in shown.stdout
    assert "replay: 14 builds of 14 revisions" in shown.stderr


def test_a_cause_that_changes_is_named(workspace: Workspace, tmp_path: Path) -> None:
    write_all(workspace)
    rules = tmp_path / "sure.yaml"
    rules.write_text("causes: {breakage: 1.0e-9, new_flake: 0.1}\nplaces: {least_tests: 100, false_alarms: 1.0e-30}\n")
    found = json.loads(run(workspace, "--json", "--rules", str(rules)).stdout)
    changes = [(one["test"], one["before"], one["after"]) for one in found["difference"]["causes"]]
    assert {(BROKEN[0], "backend", "flaky"), (STEADY[10], "infra", "flaky")} <= set(changes)
    missed = {(one["test"], one["why"]) for one in found["difference"]["missed_after"]}
    assert {(test, "called flaky") for test in BROKEN} <= missed
    assert found["rules"]["today"]["places"]
    assert not found["rules"]["file"]["places"]


def test_a_replay_changes_nothing_on_disk(workspace: Workspace, tmp_path: Path) -> None:
    live(workspace)
    rules = tmp_path / "loose.yaml"
    rules.write_text(LOOSE)
    home = workspace.project.home
    shutil.rmtree(home / "results" / "timelines")
    shutil.rmtree(home / "results" / "rollups" / f"day={day(3)}")
    before = files_of(home)
    for arguments in ((), ("--rules", str(rules)), ("--rules", str(rules), "--json")):
        result = run(workspace, *arguments)
        assert result.exit_code == 0, result.stderr
        assert files_of(home) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cases: {certain: 0.9}", "rules.yaml:1: cases: unknown key; did you mean 'causes'?"),
        ("causes:\n  certan: 0.9", "rules.yaml:2: causes.certan:"),
        ("causes: {certain: 1.5}", "rules.yaml:1: causes.certain: must be less than 1"),
        ("quarantine: {mute_above: -1}", "rules.yaml:1: quarantine.mute_above: must be at least 0"),
        ("places: {least_tests: many}", "rules.yaml:1: places.least_tests: must be a whole number"),
        ("causes: {flake_rate: [0.3]}", "rules.yaml:1: causes.flake_rate[1]:"),
        ("- causes", "rules.yaml:1: must be a mapping"),
    ],
)
def test_mistakes_in_the_file_are_named(workspace: Workspace, tmp_path: Path, text: str, said: str) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(text)
    result = run(workspace, "--rules", str(rules))
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def test_a_period_without_builds_is_an_error(workspace: Workspace) -> None:
    empty = run(workspace)
    assert (empty.exit_code, "there are no builds" in empty.stderr) == (2, True)
    write_story(workspace, 3)
    outside = run(workspace, first=5)
    assert outside.exit_code == 2
    assert f"has a ledger: the stored builds are from {day(3)} to {day(3)}" in outside.stderr
    reversed_period = run(workspace, first=5, last=4)
    assert (reversed_period.exit_code, "ends before it begins" in reversed_period.stderr) == (2, True)
    with pytest.raises(AccelCiError):
        replay(workspace, {"today": RuleSet()}, day(4), day(9))


def test_the_file_can_set_every_rule(tmp_path: Path) -> None:
    for section, rules in (
        (CauseWeights, CauseRules),
        (PlaceThresholds, PlaceRules),
        (QuarantineThresholds, QuarantineRules),
    ):
        assert section.model_fields.keys() - {"automatic"} == {field.name for field in fields(rules)}
    rules_file = tmp_path / "rules.yaml"
    rules_file.write_text("causes: {flake_rate: [1, 9]}\nquarantine: {days: 7}\n")
    found = read_rules(rules_file, RuleSet(quarantine=QuarantineRules(budget=0.5)))
    assert found.judgement.causes == CauseRules(flake_rate=(1.0, 9.0))
    assert found.acting == QuarantineRules(budget=0.5, days=7), "the section turns the rule on"
    rules_file.write_text("quarantine: {automatic: false}\n")
    assert read_rules(rules_file, found).acting is None
