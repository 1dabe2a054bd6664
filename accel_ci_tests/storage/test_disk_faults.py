"""Disks that are full, read-only or forbidden: one line with the path and what to do, whichever library met them."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accel_ci.config.settings import Project
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.disk_faults import describe_disk_fault, texts_of

MakeProject = Callable[..., Project]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    folder = tmp_path / ".accel_ci"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here: only root can")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fill a disk to its last byte; return the file that does."""
    file = disk / "fill"
    with file.open("wb", buffering=0) as stream:
        for size in (1 << 16, 1 << 8, 1):
            try:
                while stream.write(b"x" * size):
                    pass
            except OSError:
                continue
    return file


def run_nightly(folder: Path, **limits: int) -> subprocess.CompletedProcess[str]:
    """Run a nightly in a folder, with limits of resources."""

    def limit() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))

    own = ("ACCEL_CI_CONFIG", "ACCEL_CI_HOME", "DAGSTER_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    environment |= {"UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": ""}  # the build stops early, which is enough
    command = [sys.executable, "-m", "accel_ci.cli", "run", "nightly"]
    return subprocess.run(
        command, cwd=folder, env=environment, preexec_fn=limit, capture_output=True, text=True, timeout=120
    )


def test_a_full_disk_is_told_and_the_run_goes_on_when_it_is_freed(
    small_disk: Path, make_project: MakeProject, repository: Path, tmp_path: Path
) -> None:
    project = make_project(backend={"name": "toy", "distribution": "toy", "import_name": "toy", "repository": "repository"})
    full = fill(small_disk)
    done = run_nightly(tmp_path)
    assert done.returncode == 1
    assert f"stopped: the disk is full: {project.home}" in done.stderr
    assert "free some space there and run the same again" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    full.unlink()
    done = run_nightly(tmp_path)
    assert "revision: nightly-" in done.stdout, "it goes on"
    assert "disk" not in done.stderr


def test_a_file_that_may_not_grow_is_told(make_project: MakeProject, repository: Path, tmp_path: Path) -> None:
    make_project()
    done = run_nightly(tmp_path, RLIMIT_FSIZE=20_000)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr.startswith("accel-ci: stopped: ")


def test_a_folder_that_is_a_file_or_read_only(make_project: MakeProject, repository: Path, tmp_path: Path) -> None:
    project = make_project()
    project.home.write_text("a file in its place")
    done = run_nightly(tmp_path)
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    assert str(project.home) in done.stderr


def test_each_library_s_error_is_recognised(small_disk: Path, tmp_path: Path) -> None:
    database = sqlite3.connect(small_disk / "a.db")
    database.execute("create table t (x)")
    fill(small_disk)
    with pytest.raises(sqlite3.Error) as caught:
        database.execute("insert into t values (zeroblob(1000000))")
    assert "the disk is full" in str(describe_disk_fault(texts_of(caught.value), small_disk))
    with pytest.raises(OSError, match="No space left") as written:
        write_whole_file(small_disk / "manifest.json", b"x" * 100)
    wrapped = RuntimeError("something else")
    wrapped.__cause__ = written.value
    assert "the disk is full" in str(describe_disk_fault(texts_of(wrapped), small_disk))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "/a/b"), "the disk is full: /a/b; free some space there"),
        (OSError(28, "No space left on device"), "the disk is full: /home; free some space there"),
        (OSError(30, "Read-only file system", "/a"), "the folder is read-only: /a; make it writable"),
        (PermissionError(13, "Permission denied", "/a"), "permission is denied: /a; let this user read and write there"),
        (OSError(122, "Disk quota exceeded", "/a"), "the disk quota is used up: /a; raise it, or remove something"),
        (OSError(36, "File name too long", "/a"), "a path is too long: /a; use a data folder with a shorter path"),
        (OSError(24, "Too many open files", "/a"), "no more files can be opened: /a; raise `ulimit -n`"),
        (OSError(5, "Input/output error", "/a"), "the disk fails: /a; repair or remount it"),
        (sqlite3.OperationalError("database or disk is full"), "the disk is full: /home; free some space there"),
        (ValueError("Errno 28 is the disk's"), "None"),
        (ConnectionRefusedError(111, "Connection refused"), "None"),
    ],
)
def test_the_line_names_the_path_and_what_to_do(error: Exception, line: str) -> None:
    assert str(describe_disk_fault(texts_of(error), Path("/home"))).startswith(line)
