"""The image of an earlier build, which is used as it is, or made anew with the same content."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from accel_ci.errors import BuildError
from accel_ci.images.kept_image import same_image
from accel_ci.model import RuntimeImage
from accel_ci.storage.sealed_folder import seal

IMAGE = RuntimeImage("venv", "", "d" * 64, "3.11", "2.13.0", None, (), False, 5.0)


def make(folder: Path) -> RuntimeImage:
    """Make a folder that looks like an environment."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    seal(folder, ".seal", leave_out=("image.json",))
    return replace(IMAGE, python=str(folder / "bin" / "python"))


def test_an_image_that_is_there_is_used_as_it_is(tmp_path: Path) -> None:
    image = make(tmp_path / "image")
    assert same_image(image, lambda: pytest.fail("it is there")) == replace(image, reused=True, work_s=0.0)


@pytest.mark.parametrize("is_changed", [False, True], ids=["gone", "changed"])
def test_another_image_is_taken_only_if_it_has_the_same_content(tmp_path: Path, is_changed: bool) -> None:
    image = make(tmp_path / "image")
    if is_changed:
        (tmp_path / "image" / "planted.py").touch()
    else:
        image = replace(image, python=str(tmp_path / "removed" / "bin" / "python"))
    assert same_image(image, lambda: IMAGE) == IMAGE
    reason = "planted.py was added" if is_changed else "removed is gone; `accel-ci prune` removes old ones"
    with pytest.raises(BuildError, match=f"{reason}; one that is made now would have other packages"):
        same_image(image, lambda: replace(IMAGE, digest="e" * 64))
