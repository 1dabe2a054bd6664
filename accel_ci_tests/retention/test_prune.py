"""Pruning real data folders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from accel_ci.errors import AccelCiError
from accel_ci.pipelines import INTEGRATION
from accel_ci.retention.prune import RevisionRegister, prune
from accel_ci_tests.retention.data_folder import GONE, NOW, RESULTS, WHOLE, DataFolder

MakeFolder = Callable[..., DataFolder]


HOLDER = """
import sys
from filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
"""


def files(home: Path) -> dict[str, int]:
    return {path.relative_to(home).as_posix(): path.lstat().st_size for path in home.rglob("*") if not path.is_dir()}


def without_bookkeeping(names: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in names.items() if not name.endswith((".lock", "/.index"))}


def test_what_no_rule_holds_goes_with_all_that_it_alone_needs(make_folder: MakeFolder) -> None:
    folder = make_folder(days=7, last_green=1)
    young, green, in_window = folder.lay_build(1), folder.lay_build(60, green=True), folder.lay_build(20)
    before_window, old = folder.lay_build(59), folder.lay_build(61, green=True)
    folder.age()
    found = folder.prune()
    assert [item.problem for item in found if item.problem] == []
    assert folder.left(young) == folder.left(green) == WHOLE
    assert folder.left(in_window) == folder.left(before_window) == RESULTS
    assert folder.left(old) == GONE
    assert not (folder.home / "builds" / old.revision).exists()
    assert folder.partitions == {build.revision for build in (young, green, in_window, before_window)}
    assert folder.prune() == [], "nothing is left to do"


def test_a_dry_run_tells_exactly_what_goes_and_how_much_it_frees(make_folder: MakeFolder) -> None:
    folder = make_folder(days=7, last_green=0)
    for days in (1, 20, 60, 61, 62):
        folder.lay_build(days)
    folder.age()
    before = without_bookkeeping(files(folder.home))
    planned = folder.prune(dry_run=True)
    assert without_bookkeeping(files(folder.home)) == before
    assert len(folder.partitions) == 5
    assert folder.prune() == planned
    after = without_bookkeeping(files(folder.home))
    assert sum(item.size_bytes for item in planned) == sum(before.values()) - sum(after.values()) > 0
    assert {item.kind for item in planned} == {
        "build", "revision", "rounds", "image", "sources", "cached wheel", "artifact",
    }  # fmt: skip


def test_released_and_pinned_builds_stay(make_folder: MakeFolder) -> None:
    folder = make_folder(last_green=0, pinned=["nightly-9[12]"])
    folder.lay_build(90)
    released, pinned, revision_released = folder.lay_build(95), folder.lay_build(91), folder.lay_build(96)
    gone = folder.lay_build(97)
    (folder.home / "builds" / released.revision / released.variant / "release.json").write_text("{}")
    (folder.home / "builds" / revision_released.revision / "release.json").write_text("{}")
    folder.age()
    folder.prune()
    assert [folder.left(build) for build in (released, pinned, revision_released)] == [WHOLE] * 3
    assert folder.left(gone) == GONE


def test_what_was_used_in_the_last_day_stays(make_folder: MakeFolder) -> None:
    folder = make_folder(last_green=0)
    folder.lay_build(90)
    old = folder.lay_build(91)
    assert {item.kind for item in folder.prune()} == {"rounds", "build", "revision"}
    assert folder.left(old) == WHOLE - {"rounds", "build", "revision", "partition"}
    folder.age()
    folder.workspace.artifacts.put_bytes(b"wheel of nightly-91-py3", "wheel.bin")  # a build that makes the same again
    folder.prune()
    assert folder.left(old) == GONE | {"wheel artifact"}


def test_what_two_builds_share_stays_for_the_one_that_is_kept(make_folder: MakeFolder) -> None:
    folder = make_folder(last_green=0)
    young, old = folder.lay_build(1), folder.lay_build(91)
    folder.lay_build(90)
    for name in ("wheel", "runtime_image"):
        text = folder.workspace.manifests.path(name, old.revision, old.variant).read_text()
        folder.workspace.manifests.path(name, young.revision, young.variant).write_text(text)
    folder.age()
    folder.prune()
    shared = {"image", "cached wheel", "wheel artifact", "sdist artifact", "sbom artifact"}
    assert folder.left(old) == GONE | shared
    assert folder.left(young) == WHOLE - shared


def test_a_build_that_a_run_has_stays_whole(make_folder: MakeFolder) -> None:
    folder = make_folder(last_green=0)
    folder.lay_build(90)
    locked, queued, asked, free = (folder.lay_build(days) for days in (91, 92, 93, 94))
    folder.age()
    manifests = folder.workspace.manifests
    revision = manifests.revision(asked.revision)
    assert revision is not None
    manifests.add_revision(revision)  # a trigger asks for it again; its run has not begun
    folder.busy = {queued.revision}
    lock_file = manifests.pipeline_lock_file(INTEGRATION, locked)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock_file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        run.stdout.readline()
        planned = folder.prune(dry_run=True)
        assert folder.prune() == planned
        assert [folder.left(build) for build in (locked, queued, asked)] == [WHOLE] * 3
        assert folder.left(free) == GONE
        run.communicate(b"\n")
    folder.prune()
    assert folder.left(locked) == GONE


def test_an_image_whose_maker_holds_it_stays(make_folder: MakeFolder) -> None:
    folder = make_folder(last_green=0)
    folder.lay_build(90)
    old = folder.lay_build(91)
    folder.age()
    images = [path for path in folder.workspace.images.iterdir() if path.is_dir()]
    [image] = [path for path in images if "91" in (path / "bin" / "python").read_text()]
    with FileLock(image.with_suffix(".lock")):
        folder.prune()
        assert (image / "bin" / "python").exists()
    folder.prune()
    assert folder.left(old) == GONE


KILLED = """
import os, signal, sys
from datetime import datetime, timezone
from pathlib import Path
from accel_ci.config.settings import Project
from accel_ci.config.loading import parse_settings
from accel_ci.retention.prune import RevisionRegister, prune
from accel_ci.workspace import Workspace

config, stop_after = Path(sys.argv[1]), int(sys.argv[2])
seen = 0
def audit(event, arguments):
    global seen
    if event in ("os.rename", "os.remove", "os.rmdir") and ".pruned-" in str(arguments):
        seen += 1
        if seen > stop_after:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(audit)
project = Project(parse_settings(config.read_text()), config, config.parent / ".accel_ci")
def forget(key):
    with open(sys.argv[3], "a") as file:
        file.write(key + "\\n")
prune(Workspace(project), RevisionRegister(set, forget), datetime.now(timezone.utc))
print("finished")
"""


@pytest.mark.parametrize("stop_after", [0, 1, 2, 3, 5, 8, 13, 21, 34])
def test_what_a_killed_prune_left_is_finished_by_the_next_one(
    make_folder: MakeFolder, tmp_path: Path, stop_after: int
) -> None:
    folder = make_folder(days=7, last_green=0)
    young, in_window = folder.lay_build(1), folder.lay_build(20)
    folder.lay_build(59)
    gone = [folder.lay_build(60), folder.lay_build(61)]
    folder.age()
    command = [sys.executable, "-c", KILLED, str(folder.project.config_path), str(stop_after), str(tmp_path / "forgotten")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr + done.stdout
    if (tmp_path / "forgotten").exists():
        folder.partitions -= set((tmp_path / "forgotten").read_text().split())
    assert folder.left(young) == WHOLE
    for build in gone:  # there, or gone: never half of it
        folder_of_build = folder.home / "builds" / build.revision / build.variant
        assert not folder_of_build.exists() or {path.name for path in folder_of_build.glob("*.json")} == {
            "wheel.json", "runtime_image.json", "test_plan.json", "device_test_results.json", "ledger.json",
        }  # fmt: skip
    folder.prune()
    assert folder.left(young) == WHOLE
    assert folder.left(in_window) == RESULTS
    assert [folder.left(build) for build in gone] == [GONE] * 2
    assert not [name for name in files(folder.home) if ".pruned-" in name]
    assert folder.prune() == []


def test_two_do_not_prune_at_once(make_folder: MakeFolder) -> None:
    folder = make_folder()
    folder.lay_build(1)
    with FileLock(folder.home / ".prune.lock"), pytest.raises(AccelCiError, match="another `prune`"):
        folder.prune()


def test_nothing_outside_of_the_data_folder_is_touched(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder(last_green=0)
    folder.lay_build(90)
    old = folder.lay_build(91)
    outside = tmp_path / "outside"
    for room in ("images/0123456789abcdef", "sources/gffff-1", "revision/py3", "shard/" + "ab" * 32):
        (outside / room).mkdir(parents=True)
        (outside / room / "image.json").write_text("precious")
    (outside / "revision" / "revision.json").write_text(
        folder.workspace.manifests.path("revision", "nightly-90").read_text()
    )
    (folder.home / "images" / "0123456789abcdef").symlink_to(outside / "images" / "0123456789abcdef")
    (folder.home / "sources" / "gffff-1").symlink_to(outside / "sources" / "gffff-1")
    (folder.home / "builds" / "nightly-link").symlink_to(outside / "revision")
    (folder.home / "builds" / old.revision / "linked").symlink_to(outside)
    (folder.home / "builds" / old.revision / old.variant / "linked").symlink_to(outside)
    (folder.home / "artifacts" / "zz").symlink_to(outside / "shard")
    (folder.home / "builds" / old.revision / "-rf $(x)\n\udcff").mkdir()
    (folder.home / "cache" / "wheels" / "\x1b[31m.json").write_text("{}")
    folder.age()
    for path in outside.rglob("*"):
        os.utime(path, (0, 0))
    before = files(outside)
    found = folder.prune()
    assert [item.problem for item in found if item.problem] == []
    assert folder.left(old) == GONE
    assert files(outside) == before


def test_a_room_behind_a_link_is_left_alone(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder(last_green=0)
    folder.lay_build(90)
    old = folder.lay_build(91)
    folder.age()
    for room in ("images", "runs"):
        (folder.home / room).rename(tmp_path / room)
        (folder.home / room).symlink_to(tmp_path / room)
    problems = {(item.kind, item.name) for item in folder.prune() if item.problem}
    assert problems == {("rounds", "runs/nightly-90/py3"), ("rounds", "runs/nightly-91/py3")}
    assert {"image", "rounds"} <= folder.left(old)


def test_a_damaged_manifest_keeps_what_it_mentions(make_folder: MakeFolder) -> None:
    folder = make_folder(last_green=0)
    young = folder.lay_build(1)
    for stage in ("wheel", "ledger", "runtime_image"):
        path = folder.workspace.manifests.path(stage, young.revision, young.variant)
        path.write_text("{{ of another version" + path.read_text())
    damaged = folder.lay_build(99)
    folder.workspace.manifests.path("revision", damaged.revision).write_text("{")
    folder.age()
    folder.prune()
    assert folder.left(young) == WHOLE
    assert folder.left(damaged) == WHOLE


def test_what_cannot_be_read_stops_the_sweep(make_folder: MakeFolder) -> None:
    folder = make_folder(last_green=0)
    young, old = folder.lay_build(1), folder.lay_build(99)
    path = folder.workspace.manifests.path("test_selection", young.revision, young.variant)
    path.mkdir()
    folder.age()
    with pytest.raises(AccelCiError, match=r"test_selection\.json cannot be read, so it is not known what it refers to"):
        folder.prune()
    assert "wheel artifact" in folder.left(old)


def test_logs_that_an_index_of_targets_names_are_kept(make_folder: MakeFolder) -> None:
    folder = make_folder(last_green=0)
    young = folder.lay_build(1)
    artifacts, manifests = folder.workspace.artifacts, folder.workspace.manifests
    log, stray = artifacts.put_bytes(b"a log", "t.log"), artifacts.put_bytes(b"nobody's", "stray.log")
    targets = artifacts.put_bytes(json.dumps([{"logs": [{"sha256": log.sha256}]}]).encode(), "bazel-targets.json")
    manifests.path("bazel_test_results", young.revision, young.variant).write_text(json.dumps({"targets": targets.sha256}))
    folder.age()
    folder.prune()
    assert artifacts.path(log).is_file()
    with pytest.raises(AccelCiError, match="is gone"):
        artifacts.path(stray)


def test_rounds_without_a_build_go(make_folder: MakeFolder) -> None:
    folder = make_folder()
    folder.lay_build(1)
    orphan = folder.home / "runs" / "nightly-gone" / "py3" / "events"
    orphan.parent.mkdir(parents=True)
    orphan.write_text("x")
    folder.age()
    assert [(item.kind, item.name) for item in folder.prune()] == [("rounds", "runs/nightly-gone")]
    assert not orphan.exists()


def test_a_partition_key_that_cannot_be_deleted_keeps_its_revision_for_the_next_time(make_folder: MakeFolder) -> None:
    def forget(key: str) -> None:
        raise RuntimeError("database is locked")

    folder = make_folder(last_green=0)
    folder.lay_build(90)
    old = folder.lay_build(91)
    folder.age()
    problems = [item for item in prune(folder.workspace, RevisionRegister(set, forget), NOW) if item.problem]
    assert [(item.name, item.problem) for item in problems] == [
        ("builds/nightly-91", "its partition key stays: database is locked")
    ]
    assert folder.left(old) == GONE | {"revision", "partition", "sources", "patched sources"}
    folder.prune()
    assert folder.left(old) == GONE


def test_a_run_beside_prune_finds_all_that_it_refers_to(make_folder: MakeFolder, tmp_path: Path) -> None:
    """One process makes builds of old contents again and again while another prunes."""
    folder = make_folder(last_green=0)
    folder.lay_build(90)
    builds = [folder.lay_build(days) for days in range(100, 130)]
    folder.age()
    maker = """
import sys
from pathlib import Path
from accel_ci.storage.artifacts import ArtifactStore
store = ArtifactStore(Path(sys.argv[1]) / "artifacts")
print("begun", flush=True)
kept = [store.put_bytes(f"{part} of nightly-{days}-py3".encode(), f"{part}.bin")
        for days in range(100, 130) for part in ("wheel", "sdist", "sbom", "batches")]
sys.stdin.readline()
for artifact in kept:
    assert store.path(artifact).is_file()
print("all there", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", maker, str(folder.home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdin is not None
        run.stdout.readline()
        folder.prune()
        out, _ = run.communicate("\n", timeout=60)
    assert out == "all there\n"
    assert len(builds) == 30


def test_builds_of_components_go_when_no_build_is_kept_that_has_them_and_nobody_uses_them(make_folder: MakeFolder) -> None:
    folder = make_folder(days=7, last_green=0)
    young, keys = folder.lay_build(1), {name: letter * 64 for name, letter in (("kept", "a"), ("gone", "b"), ("used", "c"))}
    manifest = folder.home / "builds" / young.revision / young.variant / "stack.json"
    manifest.write_text(json.dumps({"components": [{"name": "kept", "key": keys["kept"]}]}))
    places = {name: folder.home / "cache" / "stack" / key[:16] for name, key in keys.items()}
    for place in places.values():
        (place / "prefix").mkdir(parents=True)
        (place / "component.json").write_text("{}")
    folder.age()
    os.utime(places["used"] / "component.json", (NOW.timestamp(), NOW.timestamp()))
    found = folder.prune()
    assert [(item.kind, item.problem) for item in found if item.name.startswith("cache/stack")] == [
        ("component of the stack", None)
    ]
    assert {name for name, place in places.items() if place.is_dir()} == {"kept", "used"}
