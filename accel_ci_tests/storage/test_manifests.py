"""Manifests under several writers and readers at once."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from accel_ci.errors import AccelCiError
from accel_ci.model import Artifact, Build, Revision, Source
from accel_ci.storage.manifests import ASKED_AGAIN, ManifestStore

BUILD = Build("manual-a", "py3")
VALUE = Artifact("0" * 64, "a", 1)


def test_what_an_earlier_run_made_stays_when_another_begins(tmp_path: Path) -> None:
    manifests = ManifestStore(tmp_path)
    for name in ("wheel", "ledger"):
        manifests.write(manifests.path(name, BUILD.revision, BUILD.variant), VALUE)
    manifests.begin("wheel", BUILD)
    assert manifests.find("wheel", BUILD, Artifact) == VALUE
    assert manifests.find("ledger", BUILD, Artifact) == VALUE


def test_a_manifest_that_is_not_there_is_none_or_named(tmp_path: Path) -> None:
    manifests = ManifestStore(tmp_path)
    assert manifests.find("wheel", BUILD, Artifact) is None
    with pytest.raises(AccelCiError, match=r"wheel\.json is missing; run the build"):
        manifests.read(manifests.path("wheel", BUILD.revision, BUILD.variant), Artifact)


def test_a_manifest_that_cannot_be_read_is_not_taken_for_missing(tmp_path: Path) -> None:
    manifests = ManifestStore(tmp_path)
    manifests.path("wheel", BUILD.revision, BUILD.variant).mkdir(parents=True)
    with pytest.raises(AccelCiError, match=r"wheel\.json cannot be read: Is a directory"):
        manifests.find("wheel", BUILD, Artifact)


def test_a_revision_is_kept_once(tmp_path: Path) -> None:
    manifests = ManifestStore(tmp_path)
    source = Source("up", "main", "a" * 40)
    first = Revision("manual-a", "manual", datetime(2026, 11, 27, tzinfo=timezone.utc), source, source)
    second = replace(first, upstream=replace(source, sha="b" * 40))
    assert manifests.add_revision(first) == first
    assert manifests.add_revision(second) == first
    assert manifests.revision("manual-a") == first
    assert {path.name for path in (tmp_path / "builds" / "manual-a").iterdir()} == {"revision.json", ASKED_AGAIN}
