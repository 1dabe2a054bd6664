"""Artifacts by digest and name, wherever their data folder lies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from accel_ci.errors import AccelCiError
from accel_ci.model import Artifact, Build, RuntimeImage, TestPlan
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.manifests import ManifestStore

BUILD = Build("nightly-20261127", "py3")


def test_a_data_folder_can_be_moved(tmp_path: Path) -> None:
    old = tmp_path / "old"
    artifact = ArtifactStore(old / "artifacts").put_bytes(b"[]", "plan, ümlaut & more.json")
    manifests = ManifestStore(old)
    plan = TestPlan(artifact, 38, 700, 12, 2, 601.0, 300.5)
    manifests.write(manifests.path("test_plan", BUILD.revision, BUILD.variant), plan)
    old.rename(tmp_path / "new")
    for file in (tmp_path / "new").rglob("*.json"):
        assert str(tmp_path) not in file.read_text("utf-8")
    moved = ManifestStore(tmp_path / "new").find("test_plan", BUILD, TestPlan)
    assert moved == plan
    store = ArtifactStore(tmp_path / "new" / "artifacts")
    assert store.path(moved.batches).read_bytes() == b"[]"
    assert store.location(moved.batches) == store.path(moved.batches)


def test_a_manifest_with_the_address_of_earlier_versions_is_read(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    artifact = store.put_bytes(b"{}", "a wheel+1.whl")
    earlier = {"uri": f"file:///gone/{artifact.sha256}/a%20wheel+1.whl", "sha256": artifact.sha256, "size_bytes": 2}
    assert TypeAdapter(Artifact).validate_python(earlier) == artifact
    image: dict[str, object] = {
        "kind": "venv", "python": "/p", "digest": "d", "python_version": "3", "torch_version": "2", "torch_sha": None,
        "packages": [], "reused": False, "work_s": 0, "sbom": earlier,
    }  # fmt: skip
    read = TypeAdapter(RuntimeImage).validate_json(json.dumps(image))
    assert read.sbom is not None
    assert store.path(read.sbom).read_bytes() == b"{}"


@pytest.mark.parametrize("sha256", ["", "../../../etc", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_a_digest_that_is_none_names_no_file(tmp_path: Path, sha256: str) -> None:
    with pytest.raises(AccelCiError, match="is no SHA-256 digest"):
        ArtifactStore(tmp_path).path(Artifact(sha256, "passwd", 1))


def test_a_name_leads_nowhere_else(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    artifact = store.put_bytes(b"x", "../../outside.txt")
    assert artifact.name == "outside.txt"
    (tmp_path / "outside.txt").write_text("secret")
    assert store.path(Artifact(artifact.sha256, "../../../../outside.txt", 1)).read_bytes() == b"x"


def test_the_same_content_is_kept_once(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    assert store.put_bytes(b"x", "a") == store.put_bytes(b"x", "a")
    assert len([path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]) == 1
