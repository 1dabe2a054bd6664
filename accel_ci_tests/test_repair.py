"""Damaged files of a data folder: earlier ones stop nothing, and `accel-ci doctor --repair` sets them aside."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from accel_ci.cli import main
from accel_ci.config.settings import Project
from accel_ci.hud.site import write_site
from accel_ci.ledger.status import find_build, read_status
from accel_ci.model import Attempt, Build, DeviceTestResults, Ledger, Revision, Wheel
from accel_ci.notify.current import NOTIFIED, Notified
from accel_ci.pull_requests.answer import Base
from accel_ci.pull_requests.sent import Sent, SentAnswers
from accel_ci.pull_requests.watched import Head, Watched, keep_watched
from accel_ci.quality.flakiness import measure
from accel_ci.repair import repair
from accel_ci.results.history import median_durations
from accel_ci.source.revision import resolve_revision
from accel_ci.storage.manifests import PipelineRun
from accel_ci_tests.fixtures.stored_attempts import root_of, write_attempts
from accel_ci_tests.retention.data_folder import NOW, DataFolder

pytest_plugins = ["accel_ci_tests.fixtures.stored_attempts"]

OLD, NEW = "nightly-3", "nightly-1"
DAMAGE = {"empty": b"", "cut": b'{"key": "nigh', "binary": b"\0\xff" * 100, "another": b"[1, 2]"}
FILES = (
    "builds/{}/revision.json", "builds/{}/py3/wheel.json", "builds/{}/py3/ledger.json", "builds/{}/py3/test_plan.json",
    "builds/{}/py3/device_test_results.json", "builds/{}/py3/runtime_image.json", "builds/{}/py3/.run-wheel.json",
    "quality/flakiness.json",
)  # fmt: skip


@pytest.fixture
def folder(make_project: Callable[..., Project], attempt: Callable[..., Attempt]) -> DataFolder:
    """A data folder with two nightlies and their attempts."""
    folder = DataFolder(make_project())
    workspace = folder.workspace
    manifests = workspace.manifests
    for days in (3, 1):
        build = folder.lay_build(days, green=True)
        write_attempts(
            workspace.results, build, (NOW - timedelta(days=days)).date(), [attempt("a", "passed", seconds=2.0 * days)]
        )
        [*_, pipeline] = [one for one in manifests.pipelines if one.stages[0] == "wheel"]
        manifests.write(manifests.run_file(pipeline, build), PipelineRun("run", NOW, NOW, "ledger", None, True))
    manifests.write(manifests.path("flakiness"), measure(workspace.results, NOW.date(), 14))
    return folder


def command(folder: DataFolder, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--config", str(folder.project.config_path), *arguments])


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_of_an_earlier_build_stops_nothing_and_is_set_aside(
    folder: DataFolder, file: str, damage: str
) -> None:
    path = folder.home / file.format(OLD)
    path.write_bytes(DAMAGE[damage])
    workspace = folder.workspace
    manifests, build = workspace.manifests, Build(NEW, "py3")
    assert find_build(manifests, None) == build
    assert read_status(manifests, build).passed
    assert manifests.newest_revision("nightly", "nightly") is not None
    for stage, kind in (("ledger", Ledger), ("device_test_results", DeviceTestResults)):
        before = manifests.previous(stage, build, kind)
        assert (before is None) is file.endswith((f"/{stage}.json", "revision.json"))
    write_site(workspace, measure(workspace.results, NOW.date(), 14), folder.home / "site", now=NOW)
    shown = command(folder, "status")
    assert shown.exit_code == 0, shown.output
    old = command(folder, "status", f"{OLD}~py3")
    assert old.exit_code in (0, 2)
    assert "Traceback" not in old.output
    if file.endswith(("ledger.json", "device_test_results.json")):
        assert "damaged: " in old.output
    [repaired] = repair(workspace)
    assert repaired.name == str(path.relative_to(folder.home))
    assert (folder.home / "broken" / repaired.name).read_bytes() == DAMAGE[damage]
    assert repaired.name in (folder.home / "broken" / "report.txt").read_text()
    assert repair(folder.workspace) == []


RECORDS = (
    "quality/notified.json", "quality/quarantine.json", "quality/incidents.json", "quality/trends.json",
    "pull_requests/watched.json", "pull_requests/answers.json", "relay/poll.json", "relay/deliveries/d1.json",
    "relay/outcomes/d1.json", f"builds/{NEW}/py3/.relay-d1.json", f"builds/{NEW}/py3/release.json",
    f"builds/{NEW}/py3/release_override.json",
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_records_of_what_was_done_are_set_aside(folder: DataFolder, damage: str) -> None:
    for name in RECORDS:
        path = folder.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(DAMAGE[damage])
    assert {repaired.name for repaired in repair(folder.workspace)} == set(RECORDS)
    assert not any((folder.home / name).exists() for name in RECORDS)
    assert repair(folder.workspace) == []


def test_sound_records_stay(folder: DataFolder) -> None:
    workspace = folder.workspace
    keep_watched(workspace, Watched(heads={7: Head("a" * 40, NOW, "waiting", "it is from a fork")}))
    SentAnswers(workspace).keep(7, Sent("a" * 40, NOW, bases={"py3": Base("b" * 40)}))
    workspace.manifests.write(workspace.manifests.path(NOTIFIED), Notified(issues="digest"))
    before = {file: file.read_bytes() for file in folder.home.rglob("*.json")}
    assert repair(workspace) == []
    assert {file: file.read_bytes() for file in folder.home.rglob("*.json")} == before


def test_a_revision_is_made_anew_from_the_wheel_of_a_build(folder: DataFolder) -> None:
    manifests = folder.workspace.manifests
    path = manifests.path("wheel", OLD, "py3")
    wheel = manifests.read(path, Wheel)
    manifests.write(path, replace(wheel, source="1" * 40, repository="https://git.example/toy"))
    manifests.path("revision", OLD).write_bytes(b"")
    [repaired] = repair(folder.workspace)
    assert repaired.done == "set aside in broken; made anew from its builds"
    revision = manifests.read(manifests.path("revision", OLD), Revision)
    assert (revision.trigger, revision.backend.sha, revision.backend.repository) == (
        "nightly", "1" * 40, "https://git.example/toy",
    )  # fmt: skip
    manifests.path("revision", OLD).unlink()
    assert [each.reason for each in repair(folder.workspace)] == ["it was missing"]


def test_a_build_that_was_made_by_hand_is_not_trusted_when_its_revision_is_lost(folder: DataFolder) -> None:
    manifests, build = folder.workspace.manifests, Build("manual-x", "py3")
    wheel = manifests.read(manifests.path("wheel", OLD, "py3"), Wheel)
    manifests.write(manifests.path("wheel", build.revision, "py3"), replace(wheel, source="1" * 40))
    assert not folder.workspace.is_trusted_build(build)
    assert [each.reason for each in repair(folder.workspace)] == ["it was missing"]
    assert not folder.workspace.is_trusted_build(build)
    assert folder.workspace.is_trusted_build(Build(OLD, "py3"))


@pytest.mark.parametrize("damage", [b"", b"PAR1 no more", None])
def test_damaged_attempts_are_passed_over(folder: DataFolder, damage: bytes | None) -> None:
    results = folder.workspace.results
    [older, _] = sorted(results.suites(), key=lambda stored: stored.day)
    file = root_of(results) / older.entry.name
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] if damage is None else damage)
    assert list(median_durations(results, "py3", NOW.date()).values()) == [2.0]
    measure(results, NOW.date(), 14)
    assert results.query("SELECT count(*) FROM attempts") == [(1,)]
    [repaired] = repair(folder.workspace)
    assert repaired.name == f"results/{older.entry.name}"
    assert len(results.suites()) == 1
    assert repair(folder.workspace) == []


def test_a_damaged_rollup_is_made_anew(folder: DataFolder) -> None:
    results = folder.workspace.results
    [stored, _] = results.suites()
    rollup = root_of(results) / stored.rollup_name
    rollup.write_bytes(rollup.read_bytes()[:100])
    assert repair(folder.workspace) == []
    assert len(median_durations(results, "py3", NOW.date())) == 1


def test_a_damaged_database_is_set_aside(folder: DataFolder) -> None:
    file = folder.home / "dagster" / "history" / "runs.db"
    sound = file.with_name("sound.db")
    file.parent.mkdir(parents=True)
    for each in (file, sound):
        with closing(sqlite3.connect(each)) as database:
            database.execute("CREATE TABLE runs (id)")
            database.commit()
    file.write_bytes(b"no database" * 1000)
    told = command(folder, "status")
    assert told.exit_code == 0, told.output
    [repaired] = repair(folder.workspace)
    assert repaired.name == "dagster/history/runs.db"
    assert "file is not a database" in repaired.reason
    assert sound.is_file()
    assert not file.exists()


def test_a_key_whose_revision_is_damaged_is_not_used_again(folder: DataFolder, repository: Path) -> None:
    manifests = folder.workspace.manifests
    first = resolve_revision(folder.project, "nightly", manifests.revision, now=NOW, upstream_sha="2" * 40)
    manifests.add_revision(first)
    manifests.path("revision", first.key).write_bytes(b"")
    second = resolve_revision(folder.project, "nightly", manifests.revision, now=NOW, upstream_sha="2" * 40)
    assert second.key == f"{first.key}.2"


def test_the_command_tells_what_it_has_done(folder: DataFolder) -> None:
    assert command(folder, "doctor", "--repair").output == "nothing is damaged\n"
    (folder.home / "builds" / OLD / "py3" / "ledger.json").write_text("{")
    done = command(folder, "doctor", "--repair")
    assert done.exit_code == 0
    *_, line, count = done.output.splitlines()
    assert line.startswith(f"builds/{OLD}/py3/ledger.json: ")
    assert line.endswith(f"set aside in broken; build {OLD}~py3 again, which goes on from there")
    assert count == "1 damaged"


def test_a_span_that_ends_before_it_begins_is_not_known(folder: DataFolder) -> None:
    manifests, build = folder.workspace.manifests, Build(NEW, "py3")
    pipeline = next(one for one in manifests.pipelines if one.stages[0] == "wheel")
    manifests.write(
        manifests.run_file(pipeline, build), PipelineRun("r", NOW, NOW - timedelta(days=1), "ledger", None, True)
    )
    assert read_status(manifests, build).wall_s is None
