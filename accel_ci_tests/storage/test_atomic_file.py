"""Atomic writing of files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from accel_ci.storage.atomic_file import (
    create_whole_file,
    remove_abandoned,
    replace_link,
    whole_file,
    write_whole_file,
)

_WRITER = """
import pathlib, sys, time
from accel_ci.storage.atomic_file import whole_file
with whole_file(pathlib.Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("written", flush=True)
    time.sleep(600)
"""


def test_a_file_is_whole_despite_other_writers(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with whole_file(path) as first:
        first.write(b"fi")
        with whole_file(path, durable=True) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
        first.write(b"rst")
    assert path.read_bytes() == b"first"
    with pytest.raises(ZeroDivisionError), whole_file(path) as third:
        third.write(b"th" * (1 // 0))
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_only_one_writer_creates_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert create_whole_file(path, b"first")
    assert not create_whole_file(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_has_its_mode_from_the_beginning(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a", mode=0o600) as file:
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    write_whole_file(tmp_path / "b", b"")
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_link_is_replaced(tmp_path: Path) -> None:
    for target in ("a", "b"):
        replace_link(tmp_path / "link", tmp_path / target)
        assert (tmp_path / "link").readlink() == tmp_path / target
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_only_scratch_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        [scratch] = tmp_path.iterdir()
        remove_abandoned(tmp_path)
        assert scratch.exists()
        writer.send_signal(signal.SIGKILL)
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with whole_file(path):  # empty, and maybe not locked yet
        remove_abandoned(tmp_path)
    assert path.exists()
