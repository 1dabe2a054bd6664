"""The version of the layout: what a release refuses, and what it makes new, in a folder and in a bucket."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from accel_ci.model import Revision, Source
from accel_ci.storage.bucket import BucketStore
from accel_ci.storage.layout import LAYOUT, LayoutError, LayoutFile
from accel_ci.storage.manifests import ManifestStore
from accel_ci.storage.shared_folder import FolderShare, SharedFolder, Unshared
from accel_ci_tests.fixtures.stored_attempts import real_s3

SOURCE = Source("https://example.org/a.git", "refs/heads/main", "a" * 40)
REVISION = Revision("manual-a", "manual", datetime(2026, 11, 27, tzinfo=timezone.utc), SOURCE, SOURCE)


def version_in(home: Path) -> int:
    return int(json.loads((home / "layout.json").read_text())["version"])


def test_the_first_build_notes_the_version(tmp_path: Path) -> None:
    ManifestStore(tmp_path).add_revision(REVISION)
    assert version_in(tmp_path) == LAYOUT


def test_data_of_a_newer_release_are_refused(tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_text(json.dumps({"version": LAYOUT + 1}))
    refusal = r"a newer release has changed the data .*: use that release, or restore the"
    with pytest.raises(LayoutError, match=refusal):
        ManifestStore(tmp_path).revisions()
    with pytest.raises(LayoutError, match=refusal):
        ManifestStore(tmp_path).add_revision(REVISION)
    assert not (tmp_path / "builds" / REVISION.key).exists()


@pytest.mark.parametrize("content", ["", "[]", '{"version": "two"}'])
def test_a_damaged_file_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "layout.json").write_text(content)
    with pytest.raises(LayoutError, match=r"layout.json is damaged; write \{\"version\": 1\} if the data are those"):
        ManifestStore(tmp_path).revisions()


def test_older_data_are_refused_until_they_are_upgraded_and_a_step_that_failed_is_done_again(tmp_path: Path) -> None:
    ManifestStore(tmp_path).add_revision(REVISION)
    done, trouble = [], [OSError("the disk is full")]

    def to_two(home: Path, _share: FolderShare) -> None:
        (home / "builds").rename(home / "revisions")
        done.append(2)

    def to_three(_home: Path, _share: FolderShare) -> None:
        if trouble:
            raise trouble.pop()
        done.append(3)

    def newer() -> LayoutFile:
        return LayoutFile(tmp_path, Unshared(), 3, {1: to_two, 2: to_three})

    with pytest.raises(LayoutError, match=r"of an older release .version 1; this one uses 3.: make a backup, then run"):
        newer().check()
    with pytest.raises(OSError, match="full"):
        newer().upgrade(lambda text: None)
    assert version_in(tmp_path) == 2
    newer().upgrade(lambda text: None)
    newer().check()
    assert (done, version_in(tmp_path)) == ([2, 3], 3)
    with pytest.raises(LayoutError, match="a newer release"):
        ManifestStore(tmp_path).revisions()


@real_s3
def test_another_machine_sees_the_version_in_the_bucket(
    tmp_path: Path, open_bucket_store: Callable[..., BucketStore]
) -> None:
    def store(name: str) -> ManifestStore:
        return ManifestStore(tmp_path / name, share=SharedFolder(tmp_path / name, open_bucket_store(name)))

    store("one").add_revision(REVISION)
    assert [each.key for each in store("other").revisions()] == [REVISION.key]
    assert version_in(tmp_path / "other") == LAYOUT
    LayoutFile(tmp_path / "one", store("one").share, 2, {1: lambda home, share: None}).upgrade(lambda text: None)
    with pytest.raises(LayoutError, match=r"s3://.*/layout.json: a newer release"):
        store("other").revisions()
