"""Two machines that share a project through the bucket of a real S3 server: each has a data folder of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from subprocess import Popen
from typing import Any, cast

import pytest

from accel_ci.errors import AccelCiError
from accel_ci.model import Build, Revision, Source, TestPlan
from accel_ci.pipelines import INTEGRATION, LEDGER, PIPELINES
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.bucket import BucketStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci.storage.object_store import Entry, SharedFiles
from accel_ci.storage.packs import MANY
from accel_ci.storage.shared_folder import SharedFolder
from accel_ci_tests.fixtures.stored_attempts import NEEDED, real_s3

pytestmark = real_s3
BUILD = Build("nightly-20261127", "py3")
SOURCE = Source("https://example.org/a.git", "refs/heads/main", "a" * 40)
REVISION = Revision(BUILD.revision, "nightly", datetime(2026, 11, 27, tzinfo=timezone.utc), SOURCE, SOURCE)


@pytest.fixture
def machine(tmp_path: Path, open_bucket_store: Callable[..., BucketStore]) -> Callable[[str], ManifestStore]:
    """Make the manifests of a machine by name, whose data folder is empty at first."""

    def make(name: str) -> ManifestStore:
        home = tmp_path / name
        return ManifestStore(home, PIPELINES, SharedFolder(home, open_bucket_store(f"{name}-cache")))

    return make


def some_plan(artifacts: ArtifactStore, seconds: float = 1.0) -> TestPlan:
    return TestPlan(artifacts.put_bytes(b"[]", "plan.json"), 38, 700, 12, 2, seconds, 300.5)


def test_what_one_machine_writes_another_reads(
    machine: Callable[[str], ManifestStore], tmp_path: Path, open_bucket_store: Callable[..., BucketStore]
) -> None:
    one, other = machine("one"), machine("other")
    artifacts = ArtifactStore(tmp_path / "one" / "artifacts", open_bucket_store("one-cache"))
    plan = some_plan(artifacts)
    assert one.add_revision(REVISION) == REVISION
    one.write(one.path("test_plan", BUILD.revision, BUILD.variant), plan)
    one.begin("wheel", BUILD)
    one.write(one.path("coverage"), plan)
    assert [each.key for each in other.revisions()] == [BUILD.revision]
    assert other.revision(BUILD.revision) == REVISION
    assert list(other.list_builds()) == [BUILD]
    assert other.begun(BUILD) == (INTEGRATION.stages[0],)
    found = other.find("test_plan", BUILD, TestPlan)
    assert found == plan
    assert other.read(other.path("coverage"), TestPlan) == plan
    elsewhere = ArtifactStore(tmp_path / "other" / "artifacts", open_bucket_store("other-cache"))
    assert elsewhere.checked_path(found.batches).read_bytes() == b"[]"


def test_a_machine_sees_what_another_changed_and_removed(machine: Callable[[str], ManifestStore], tmp_path: Path) -> None:
    one, other, artifacts = machine("one"), machine("other"), ArtifactStore(tmp_path / "artifacts")
    path = one.path("test_plan", BUILD.revision, BUILD.variant)
    mark = one.path(".complete-test_plan", BUILD.revision, BUILD.variant)
    one.add_revision(REVISION)
    one.write(path, some_plan(artifacts, 1.0))
    one.write(mark, some_plan(artifacts))
    other.bring(BUILD)
    local = other.folder(BUILD) / "local.lock"
    local.touch()
    one.write(path, some_plan(artifacts, 2.0))
    one.remove(mark)
    with pytest.raises(ValueError, match="too late"), one.noting_failure("wheel", BUILD):
        raise ValueError("too late")
    other.bring(BUILD)
    assert other.read(other.path("test_plan", BUILD.revision, BUILD.variant), TestPlan).estimated_s == 2.0
    assert other.find(".complete-test_plan", BUILD, TestPlan) is None
    assert other.failure("wheel", BUILD) == "ValueError: too late"
    assert local.is_file(), "a lock belongs to one machine"
    with one.noting_failure("wheel", BUILD):
        pass
    other.bring(BUILD)
    assert other.failure("wheel", BUILD) is None


def test_of_many_machines_that_resolve_a_revision_one_wins(machine: Callable[[str], ManifestStore]) -> None:
    candidates = [replace(REVISION, created_at=datetime(2026, 11, 27, hour, tzinfo=timezone.utc)) for hour in range(8)]
    machines = [machine(f"machine-{number}") for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        kept = list(threads.map(lambda one, revision: one.add_revision(revision), machines, candidates))
    assert len(set(kept)) == 1
    assert all(one.revision(BUILD.revision) == kept[0] for one in machines)


def test_a_folder_is_the_same_everywhere(tmp_path: Path, open_bucket_store: Callable[..., BucketStore]) -> None:
    one, other = (SharedFolder(tmp_path / name, open_bucket_store(f"{name}-cache")) for name in ("one", "other"))
    site = tmp_path / "one" / "hud"
    (site / "data" / "week ü").mkdir(parents=True)
    (site / "index.html").write_text("1")
    (site / "data" / "week ü" / "a&b.js").write_text("x")
    one.send_folder(site)
    (site / "index.html").write_text("2")
    (site / "data" / "week ü" / "a&b.js").unlink()
    (site / "data" / "new.js").write_text("")
    (site / "link").symlink_to("/etc/passwd")
    one.send_folder(site)
    copy = tmp_path / "other" / "hud"
    copy.mkdir(parents=True)
    (copy / "gone.html").write_text("of an earlier state")
    os.utime(copy / "gone.html", (0, 0))
    other.bring(copy)
    found = {path.relative_to(copy).as_posix(): path.read_text() for path in copy.rglob("*") if path.is_file()}
    assert found == {"index.html": "2", "data/new.js": ""}


def test_a_ledger_that_is_written_elsewhere_meanwhile_is_made_anew(
    machine: Callable[[str], ManifestStore], tmp_path: Path
) -> None:
    one, other, artifacts = machine("one"), machine("other"), ArtifactStore(tmp_path / "artifacts")
    seen: list[tuple[str, set[str]]] = []

    def reported(store: ManifestStore, name: str) -> TestPlan:
        """A stand-in for a ledger: it counts the stages that have reported."""
        found = {stage for stage in ("device", "bazel") if store.find(stage, BUILD, TestPlan) is not None}
        seen.append((name, found))
        return some_plan(artifacts, float(len(found)))

    def make_on_one() -> TestPlan:
        made = reported(one, "one")
        if len(seen) == 1:
            other.write(other.path("bazel", BUILD.revision, BUILD.variant), some_plan(artifacts))
            other.write_ledger(BUILD, lambda: reported(other, "other"))
        return made

    one.write(one.path("device", BUILD.revision, BUILD.variant), some_plan(artifacts))
    assert one.write_ledger(BUILD, make_on_one).estimated_s == 2.0
    assert seen == [("one", {"device"}), ("other", {"device", "bazel"}), ("one", {"device", "bazel"})]
    other.bring(BUILD)
    assert all(store.find(LEDGER, BUILD, TestPlan) == some_plan(artifacts, 2.0) for store in (one, other))


CLOSE_LEDGERS = """
import sys
from pathlib import Path
from accel_ci.model import Build
from accel_ci.pipelines import PIPELINES
from accel_ci.storage.bucket import open_bucket
from accel_ci.storage.manifests import ManifestStore
from accel_ci.storage.shared_folder import SharedFolder

name, home, bucket, prefix, endpoint, access, secret = sys.argv[1:]
home, build = Path(home), Build("nightly-20261127", "py3")
bucket = open_bucket(bucket, prefix, home / "cache", endpoint, (access, secret))
manifests = ManifestStore(home, PIPELINES, SharedFolder(home, bucket))

def make() -> list[str]:
    return sorted(file.stem for file in manifests.folder(build).glob("report-*.json"))

for number in range(5):
    manifests.write(manifests.path(f"report-{name}-{number}", build.revision, build.variant), number)
    assert f"report-{name}-{number}" in manifests.write_ledger(build, make)
"""


def test_of_processes_that_close_a_ledger_at_once_the_last_knows_all(
    machine: Callable[[str], ManifestStore], tmp_path: Path, open_bucket_store: Callable[..., BucketStore]
) -> None:
    prefix = open_bucket_store().location("").removeprefix(f"s3://{os.environ['ACCEL_CI_S3_BUCKET']}/")
    endpoint, bucket, *keys = (os.environ[name] for name in NEEDED)
    started = [
        Popen([sys.executable, "-c", CLOSE_LEDGERS, name, str(tmp_path / f"home-{name}"), bucket, prefix, endpoint, *keys])
        for name in ("a", "b", "c")
    ]
    assert [process.wait(timeout=120) for process in started] == [0, 0, 0]
    reader = machine("reader")
    reader.bring(BUILD)
    found = reader.find(LEDGER, BUILD, list)
    assert found == [f"report-{name}-{number}" for name in "abc" for number in range(5)]


class HostileBucket:
    """Lists an object by a name that the S3 server of these tests would not take, and others do."""

    def __init__(self, name: str) -> None:
        self._entry = Entry(name, "0" * 32, 1)

    def list_below(self, folder: str) -> list[Entry]:
        return [self._entry]

    def location(self, name: str) -> str:
        return f"s3://bucket/{name}"


@pytest.mark.parametrize("name", ["builds/../../owned", "builds//owned", "builds/./owned"])
def test_an_object_whose_name_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    with pytest.raises(AccelCiError, match="is not the name of a shared file"):
        SharedFolder(home, HostileBucket(name)).bring(home / "builds")  # type: ignore[arg-type]
    assert not (tmp_path / "owned").exists()


def test_an_artifact_with_another_content_is_refused(tmp_path: Path, open_bucket_store: Callable[..., BucketStore]) -> None:
    bucket = open_bucket_store()
    artifact = ArtifactStore(tmp_path / "one", bucket).put_bytes(b"right", "a.whl")
    bucket.put_bytes(f"artifacts/{artifact.sha256}/a.whl", b"wrong")
    other = ArtifactStore(tmp_path / "other", bucket)
    with pytest.raises(AccelCiError, match="has another digest"):
        other.path(artifact)
    with pytest.raises(AccelCiError, match="has another digest"):
        other.path(artifact)
    bucket.delete(f"artifacts/{artifact.sha256}/a.whl")
    with pytest.raises(AccelCiError, match="is gone"):
        other.path(artifact)


def lay_many(store: BucketStore, count: int, content: str = "manifest") -> None:
    """Write small files as a machine does, many at a time."""

    def lay(number: int) -> None:
        store.put_bytes(f"builds/r{number % 30:02}/v{number}/wheel.json", f"{content} {number}".encode())

    with ThreadPoolExecutor(10) as threads:
        list(threads.map(lay, range(count)))


def test_many_files_come_one_by_one_once_and_then_in_packs(
    tmp_path: Path, open_bucket_store: Callable[..., BucketStore]
) -> None:
    store, downloads = open_bucket_store(), list[str]()

    class Counted:
        """The bucket, with a list of what is downloaded."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def download(self, entry: Entry, path: Path) -> None:
            downloads.append(entry.name)
            store.download(entry, path)

    def bring(name: str) -> dict[str, str]:
        downloads.clear()
        home = tmp_path / name
        SharedFolder(home, cast(SharedFiles, Counted())).bring(home / "builds", packed=True)
        return {path.relative_to(home).as_posix(): path.read_text() for path in home.rglob("*.json")}

    count = MANY + 50
    lay_many(store, count)
    expected = {f"builds/r{n % 30:02}/v{n}/wheel.json": f"manifest {n}" for n in range(count)}
    assert bring("one") == expected
    assert len(downloads) == count
    assert bring("two") == expected
    assert [name.partition("/")[0] for name in downloads] == ["packs"]
    store.put_bytes("builds/r00/v0/wheel.json", b"another")
    store.delete("builds/r01/v1/wheel.json")
    changed = {**expected, "builds/r00/v0/wheel.json": "another"}
    del changed["builds/r01/v1/wheel.json"]
    assert bring("three") == changed, "what a pack has of an earlier version, or of a file that is gone, is not taken"
    assert [name.partition("/")[0] for name in downloads] == ["packs", "builds"]
    [pack] = store.list_below("packs")
    store.put_bytes(pack.name, b"damaged")
    assert bring("four") == changed
    assert len(downloads) == 1 + len(changed)
    assert len(store.list_below("packs")) == 1, "the damaged one is gone, and the files are packed again"


def test_a_pack_whose_files_have_mostly_changed_goes(tmp_path: Path, open_bucket_store: Callable[..., BucketStore]) -> None:
    store = open_bucket_store()
    for number, name in enumerate(("one", "two", "three")):
        lay_many(store, MANY, f"version {number}")
        home = tmp_path / name
        SharedFolder(home, store).bring(home / "builds", packed=True)
        assert len(store.list_below("packs")) == 1
        assert (home / "builds" / "r00" / "v0" / "wheel.json").read_text() == f"version {number} 0"
