"""The index of revisions: right whatever has happened to it, and to the manifests since."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from accel_ci.model import Artifact, Build, Revision, Source, Trigger
from accel_ci.storage.manifests import ManifestStore

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
SOURCE = Source("up", "main", "a" * 40)
VALUE = Artifact("0" * 64, "a", 1)


def add(home: Path, key: str, day: int, trigger: Trigger = "nightly", *variants: str) -> None:
    manifests = ManifestStore(home)
    manifests.add_revision(Revision(key, trigger, START + timedelta(days=day), SOURCE, SOURCE))
    for variant in variants:
        manifests.write(manifests.path("wheel", key, variant), Artifact("0" * 64, f"{key}~{variant}", 1))


def keys(home: Path) -> list[str]:
    return [each.key for each in ManifestStore(home).revisions()]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data folder with an index."""
    for day in range(4):
        add(tmp_path, f"r{day}", day, "nightly", "py3")
    assert keys(tmp_path) == ["r3", "r2", "r1", "r0"]
    assert (tmp_path / "builds" / ".index").is_file()
    return tmp_path


def _flip(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content.replace(b"2026-01-03", b"2026-01-09"))


def _make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "torn": lambda file: file.write_bytes(file.read_bytes()[:90]),
    "binary": lambda file: file.write_bytes(os.urandom(200)),
    "a changed time": _flip,
    "of another format": lambda file: file.write_text(json.dumps({"r1": 3})),
    "a folder": _make_folder,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_index_is_made_again(home: Path, damage: Callable[[Path], object]) -> None:
    damage(home / "builds" / ".index")
    for _ in range(2):
        assert keys(home) == ["r3", "r2", "r1", "r0"]
        assert ManifestStore(home).previous("wheel", Build("r2", "py3"), Artifact) == Artifact("0" * 64, "r1~py3", 1)


def test_an_index_follows_the_manifests(home: Path) -> None:
    shutil.rmtree(home / "builds" / "r1")
    add(home, "between", 0, "manual")
    shutil.rmtree(home / "builds" / "r2")
    add(home, "r2", -5, "intraday")  # made anew under its old key
    (home / "builds" / "r0" / "revision.json").write_text("{")
    (home / "builds" / "stray").mkdir()
    found = {each.key: each.trigger for each in ManifestStore(home).revisions()}
    assert found == {"stray": None, "r0": None, "r3": "nightly", "between": "manual", "r2": "intraday"}
    (home / "builds" / "stray" / "revision.json").write_bytes((home / "builds" / "r3" / "revision.json").read_bytes())
    assert {each.key: each.trigger for each in ManifestStore(home).revisions()}["stray"] == "nightly"
    (home / "builds" / "r3" / "revision.json").unlink()
    assert {each.key: each.trigger for each in ManifestStore(home).revisions()}["r3"] is None


def test_an_old_index_beside_new_manifests_is_stale_and_known_to_be(home: Path, tmp_path: Path) -> None:
    index = (home / "builds" / ".index").read_bytes()
    shutil.rmtree(home / "builds" / "r3")
    add(home, "r3", -1)
    add(home, "r4", 9)
    keys(home)
    (home / "builds" / ".index").write_bytes(index)
    assert keys(home) == ["r4", "r2", "r1", "r0", "r3"]


def test_a_read_only_folder_is_read_without_an_index(home: Path) -> None:
    index = home / "builds" / ".index"
    index.unlink()
    index.mkdir()  # root may write into read-only folders, but nobody replaces a folder by a file
    assert keys(home) == ["r3", "r2", "r1", "r0"]


def test_many_writers_and_readers_agree(tmp_path: Path) -> None:
    code = """
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from accel_ci.model import Revision, Source
from accel_ci.storage.manifests import ManifestStore
store, name = ManifestStore(Path(sys.argv[1])), sys.argv[2]
source = Source("up", "main", "a" * 40)
for number in range(30):
    created = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(hours=number)
    store.add_revision(Revision(f"{name}{number}", "nightly", created, source, source))
    seen = [each.key for each in store.revisions()]
    own = [key for key in seen if key.startswith(name)]
    assert own == [f"{name}{n}" for n in reversed(range(number + 1))], own
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in "abcd"]
    assert [writer.wait(timeout=100) for writer in writers] == [0, 0, 0, 0]
    assert len(keys(tmp_path)) == 120


def test_the_build_before_is_of_the_same_variant_and_trigger(tmp_path: Path) -> None:
    add(tmp_path, "a", 0, "nightly", "py3", "py4")
    add(tmp_path, "b", 1, "nightly", "py4")
    add(tmp_path, "c", 2, "manual", "py3")
    add(tmp_path, "d", 3, "nightly", "py3")
    add(tmp_path, "e", 4, "nightly", "py3")
    manifests = ManifestStore(tmp_path)
    before = {
        build.name: found.name if (found := manifests.previous("wheel", build, Artifact)) else None
        for build in manifests.list_builds()
    }
    assert before == {
        "e~py3": "d~py3", "d~py3": "a~py3", "c~py3": None, "b~py4": "a~py4", "a~py3": None, "a~py4": None,
    }  # fmt: skip
    assert manifests.previous("ledger", Build("e", "py3"), Artifact) is None
    assert manifests.previous("wheel", Build("unknown", "py3"), Artifact) is None


def test_the_newest_revision_of_a_day(tmp_path: Path) -> None:
    for number, key in enumerate(("nightly-20260101", "nightly-20260102", "nightly-20260102.2", "nightly-20260103")):
        add(tmp_path, key, number)
    newest = ManifestStore(tmp_path).newest_revision
    found = newest("nightly", "nightly-20260102")
    assert found is not None
    assert found.key == "nightly-20260102.2"
    assert newest("manual", "nightly-20260102") is None
    assert newest("nightly", "nightly-20260104") is None
