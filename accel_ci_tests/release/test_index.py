"""Uploads to a real index: once, with a token that nobody sees, and never over another file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_ci.config.release_settings import Index
from accel_ci.errors import AccelCiError
from accel_ci.release.index import upload
from accel_ci_tests.fixtures.package_index import TOKEN, PackageIndex, package_index
from accel_ci_tests.fixtures.stand_in_torch import write_package

WITH_TOKEN = {**os.environ, "TOY_INDEX_TOKEN": TOKEN}
NAME = "toy_backend-1.0+g123-py3-none-any.whl"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    with package_index(tmp_path / "index") as served:
        yield served


def settings_of(index: PackageIndex) -> Index:
    return Index.model_validate(index.section())


def test_a_wheel_is_uploaded_once(tmp_path: Path, index: PackageIndex) -> None:
    wheel = write_package(tmp_path, "toy_backend-1.0+g123", {"toy_backend.py": "night = 1\n"})
    assert upload(settings_of(index), [wheel], dry_run=True, environment=WITH_TOKEN) == (NAME,)
    assert index.names == []
    assert upload(settings_of(index), [wheel], environment=WITH_TOKEN) == (NAME,)
    assert (index.folder / NAME).read_bytes() == wheel.read_bytes()
    at = (index.folder / NAME).stat().st_mtime_ns
    assert upload(settings_of(index), [wheel], environment=WITH_TOKEN) == ()
    assert (index.folder / NAME).stat().st_mtime_ns == at


def test_an_upload_that_was_cut_short_is_completed(tmp_path: Path, index: PackageIndex) -> None:
    runtime = write_package(tmp_path, "toy_runtime-1.0", {"toy_runtime.py": ""})
    wheel = write_package(tmp_path, "toy_backend-1.0+g123", {"toy_backend.py": ""})
    assert upload(settings_of(index), [runtime], environment=WITH_TOKEN)
    assert upload(settings_of(index), [runtime, wheel], environment=WITH_TOKEN) == (NAME,)


def test_a_name_with_other_content_is_refused(tmp_path: Path, index: PackageIndex) -> None:
    wheel = write_package(tmp_path, "toy_backend-1.0+g123", {"toy_backend.py": "night = 1\n"})
    upload(settings_of(index), [wheel], environment=WITH_TOKEN)
    before = wheel.read_bytes()
    write_package(tmp_path, "toy_backend-1.0+g123", {"toy_backend.py": "night = 2\n"})
    with pytest.raises(AccelCiError, match=r"do not match(.|\n)*give the new build another version"):
        upload(settings_of(index), [wheel], environment=WITH_TOKEN)
    assert (index.folder / NAME).read_bytes() == before


def test_a_wrong_token_is_refused_and_not_shown(tmp_path: Path, index: PackageIndex) -> None:
    wheel = write_package(tmp_path, "toy_backend-1.0+g123", {"toy_backend.py": ""})
    with pytest.raises(AccelCiError, match="See that the token may upload this project") as refusal:
        upload(settings_of(index), [wheel], environment={**WITH_TOKEN, "TOY_INDEX_TOKEN": "pypi-wrongWrongWrong"})
    assert "pypi-wrong" not in str(refusal.value)
    with pytest.raises(AccelCiError, match=r"\$TOY_INDEX_TOKEN is not set"):
        upload(settings_of(index), [wheel], environment={**WITH_TOKEN, "TOY_INDEX_TOKEN": ""})
    assert index.names == []
