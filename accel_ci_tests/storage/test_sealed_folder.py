from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_ci.storage.sealed_folder import changes, in_short, seal

SEAL = "kept/.seal"
ODD = os.fsdecode(b"caf\xe9.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sealed folder with each kind of entry."""
    folder = tmp_path / "folder"
    (folder / "kept").mkdir(parents=True)
    (folder / "cache").mkdir()
    for name in ("a.py", "kept/b.py", ODD, ".hidden"):
        (folder / name).write_text("x = 1\n")
    (folder / "link").symlink_to("a.py")
    os.utime(folder / "a.py", ns=(1, 1))
    seal(folder, SEAL, leave_out=["cache"])
    return folder


def test_nothing_has_changed(folder: Path) -> None:
    (folder / "cache" / "a.pyc").write_bytes(b"byte code")
    assert changes(folder, SEAL, leave_out=["cache"]) == []


def overwrite_and_set_time_back(folder: Path) -> None:
    (folder / "a.py").write_text("x = 2\n")
    os.utime(folder / "a.py", ns=(1, 1))


def replace_by_rename(folder: Path) -> None:
    (folder / "other").write_text("x = 2\n")
    (folder / "other").rename(folder / "a.py")


def replace_link(folder: Path) -> None:
    (folder / "link").unlink()
    (folder / "link").symlink_to("kept/b.py")


def replace_by_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def file_becomes_folder(folder: Path) -> None:
    (folder / "a.py").unlink()
    (folder / "a.py").mkdir()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (overwrite_and_set_time_back, ["a.py was changed"]),
        (replace_by_rename, ["a.py was changed"]),
        (replace_link, ["link was changed"]),
        (file_becomes_folder, ["a.py was changed"]),
        (lambda folder: (folder / "a.py").chmod(0o755), ["a.py was changed"]),
        (lambda folder: (folder / ODD).write_text("x = 2\n"), ["caf\\xe9.py was changed"]),
        (lambda folder: (folder / "kept" / "b.py").unlink(), ["kept/b.py was removed"]),
        (lambda folder: (folder / "new").mkdir(), ["new was added"]),
        (lambda folder: os.mkfifo(folder / "pipe"), ["pipe was added"]),
        (lambda folder: (folder / ".gitignore").write_text("*\n"), [".gitignore was added"]),
        (lambda folder: (folder / SEAL).unlink(), [f"{SEAL} is missing or damaged"]),
        (lambda folder: (folder / SEAL).write_text("{}["), [f"{SEAL} is missing or damaged"]),
        (lambda folder: (folder / SEAL).write_text('{"a.py": 1}'), [f"{SEAL} is missing or damaged"]),
        (lambda folder: replace_by_pipe(folder / SEAL), [f"{SEAL} is missing or damaged"]),
    ],
)
def test_a_change_is_found(folder: Path, change: Callable[[Path], object], found: list[str]) -> None:
    change(folder)
    assert changes(folder, SEAL, leave_out=["cache"]) == found
    assert changes(folder, SEAL, leave_out=["cache"]) == found  # looking again does not accept it


def test_a_file_that_was_only_touched_has_not_changed(folder: Path) -> None:
    before = (folder / SEAL).read_bytes()
    (folder / "a.py").write_text("x = 1\n")
    assert changes(folder, SEAL, leave_out=["cache"]) == []
    assert (folder / SEAL).read_bytes() != before  # it is not read again the next time


def test_many_changes_are_shortened() -> None:
    assert in_short(["a", "b"]) == "a, b"
    assert in_short([str(number) for number in range(1234)]) == "0, 1, 2, 3, 4 and 1,229 more"
