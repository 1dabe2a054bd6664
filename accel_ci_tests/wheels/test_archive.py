"""Zip archives that no installer should unpack: each fault is found before anything is written."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_ci.config.settings import Wheels
from accel_ci.model import CheckResult
from accel_ci.wheels.archive import read_archive

from .wheel_files import write_wheel


def archive(path: Path, rules: Wheels | None = None) -> CheckResult:
    result, contents = read_archive(path, rules or Wheels())
    assert (contents is not None) == result.passed
    return result


def faults(path: Path) -> str:
    result = archive(path)
    assert not result.passed
    return "\n".join(result.findings)


def with_entry(wheel: Path, entry: zipfile.ZipInfo | str, content: bytes = b"x = 1\n") -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(wheel, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr(entry, content)
    return wheel


def of_mode(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = mode << 16
    return entry


def test_a_sound_archive_is_read_with_the_size_and_digest_of_each_file(tmp_path: Path) -> None:
    result, contents = read_archive(
        write_wheel(tmp_path, files={"toy/": b"", "toy/größe.py": b"", "a/b,c.txt": b"1"}), Wheels()
    )
    assert (result.passed, result.summary, result.warnings) == (True, "6 files", ())
    assert contents is not None
    assert contents.members["toy/__init__.py"].size == 12
    assert "toy/" not in contents.members


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"<!DOCTYPE html><title>502</title>", "HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS"),
        (b"\x1f\x8b\x08\0rest", "gzip"),
        (b"PK\5\6" + bytes(3), "cannot be read as a zip archive"),
        (b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 9, 9, 1 << 20, 4, 0), "cannot be read as a zip archive"),
        (b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 9, 9, 1 << 28, 4, 0), "its directory has 268,435,456 bytes"),
    ],
)
def test_what_is_no_zip_archive_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "toy-1.0-py3-none-any.whl"
    path.write_bytes(content)
    assert message in faults(path)


def test_a_folder_a_pipe_and_a_missing_file_are_named(tmp_path: Path) -> None:
    assert faults(tmp_path / "toy-1.0-py3-none-any.whl") == "there is no such file"
    assert faults(tmp_path) == "is a folder, not a wheel"
    os.mkfifo(tmp_path / "pipe.whl")
    assert faults(tmp_path / "pipe.whl") == "is not a regular file, not a wheel"


@pytest.mark.parametrize("kept", [30, 100, 0.5, 0.9, 0.999])
def test_a_truncated_archive_is_refused_wherever_it_ends(tmp_path: Path, kept: float) -> None:
    path = write_wheel(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept if kept > 1 else len(content) * kept)])
    assert "zip archive" in faults(path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("../evil.py", "../evil.py: leads out of the wheel"),
        ("toy/../../evil.py", "leads out of the wheel"),
        ("/etc/evil.py", "is an absolute path"),
        ("C:/evil.py", "is an absolute path"),
        ("toy\\evil.py", "has a backslash"),
        ("toy//evil.py", "is not a normalised path"),
        ("./toy/evil.py", "is not a normalised path"),
        ("toy/ev\x1bil.py", "toy/ev\\x1bil.py: has control characters"),
        ("toy/__init__.py", "toy/__init__.py: is in the archive 2 times"),
        ("toy/__init__.py/x.py", "toy/__init__.py: is both a file and a folder"),
        (of_mode("toy/link.py", 0o120777), "toy/link.py: is a symbolic link"),
        (of_mode("toy/pipe", 0o010644), "toy/pipe: is neither a file nor a folder"),
    ],
)
def test_an_entry_that_cannot_be_installed_is_named(tmp_path: Path, entry: zipfile.ZipInfo | str, message: str) -> None:
    assert message in faults(with_entry(write_wheel(tmp_path), entry))


def test_an_encrypted_file_is_named(tmp_path: Path) -> None:
    path = write_wheel(tmp_path)
    flags_of_every_entry(path, 0x1)
    assert "toy/__init__.py: is encrypted" in faults(path)


def flags_of_every_entry(path: Path, flags: int) -> None:
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = -1
        while (at := content.find(signature, at + 1)) >= 0:
            content[at + offset] |= flags
    path.write_bytes(content)


def flip(content: bytes) -> bytes:
    at = content.index(b"toy/__init__.py") + len("toy/__init__.py") + 3
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def other_name_in_the_directory(content: bytes) -> bytes:
    at = content.rindex(b"toy/__init__.py")
    return content[:at] + b"toy/__main__.py" + content[at + 15 :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flip, "toy/__init__.py: is damaged"),
        (other_name_in_the_directory, "toy/__main__.py: its header and the directory of the archive disagree"),
        (lambda content: b"#!/bin/sh\n" + content, "bytes before it belong to no file"),
        (lambda content: content + b"more", "bytes follow the end"),
        (lambda content: content.replace(b"PK\1\2", b"PK\3\4xxxxPK\1\2", 1), "belong to no file"),
    ],
)
def test_an_archive_that_readers_would_read_differently_is_refused(
    tmp_path: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    path = write_wheel(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    assert message in faults(path)


def test_names_that_differ_in_case_are_warnings(tmp_path: Path) -> None:
    result = archive(with_entry(write_wheel(tmp_path), "toy/__INIT__.py"))
    assert (result.passed, len(result.warnings)) == (True, 2)
    assert all("differs from another file only in case" in warning for warning in result.warnings)


@pytest.mark.parametrize(("method", "shown"), [(zipfile.ZIP_BZIP2, 12), (zipfile.ZIP_LZMA, 14)])
def test_methods_of_packing_that_not_all_installers_have_are_refused(tmp_path: Path, method: int, shown: int) -> None:
    path = write_wheel(tmp_path)
    with zipfile.ZipFile(path, "a", method) as rare:
        rare.writestr("toy/rare.py", "x = 1\n")
    assert faults(path).startswith(f"toy/rare.py: is packed by method {shown}")


def test_no_wrong_byte_changes_unnoticed_what_is_read(tmp_path: Path) -> None:
    path = write_wheel(tmp_path)
    right, (_, contents) = path.read_bytes(), read_archive(path, Wheels())
    assert contents is not None
    for at in range(len(right)):
        path.write_bytes(right[:at] + bytes([right[at] ^ 0xFF]) + right[at + 1 :])
        result, read = read_archive(path, Wheels())
        if read is None:
            assert result.findings
        else:
            assert read.members == contents.members, f"byte {at}"


def test_an_archive_written_as_a_stream_is_read(tmp_path: Path) -> None:
    path = tmp_path / "toy-1.0-py3-none-any.whl"
    code = f"import sys, zipfile; zipfile.ZipFile(sys.stdout.buffer, 'w', 8).writestr('toy/__init__.py', {b'a' * 99!r})"
    with path.open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True, timeout=60)
    assert archive(path).passed


def bomb(folder: Path, size: int) -> Path:
    path = folder / "toy-1.0-py3-none-any.whl"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("toy/zeros", "w", force_zip64=True) as file,
    ):
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return path


def test_what_unpacks_to_many_times_its_size_is_refused_unless_allowed(tmp_path: Path) -> None:
    path = bomb(tmp_path, 80 << 20)
    assert "unpacks to 83,886,080 bytes, 1,0" in faults(path)
    assert archive(path, Wheels(expansion_limit=2000)).passed
    over = archive(path, Wheels(expansion_limit=2000, unpacked_budget="79m"))
    assert over.summary == "unpacks to 83,886,080 bytes, 1,048,576 over wheels.unpacked_budget"


def test_the_size_that_a_directory_declares_is_not_believed(tmp_path: Path) -> None:
    path = bomb(tmp_path, 80 << 20)
    content = bytearray(path.read_bytes())
    struct.pack_into("<L", content, content.rindex(b"PK\1\2") + 24, 100)  # the central directory's size of the file
    path.write_bytes(content)
    assert "toy/zeros" in faults(path)


def test_a_large_file_in_the_dist_info_folder_is_refused(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, files={"toy-1.0.dist-info/METADATA": bytes((1 << 26) + 1)})
    assert "toy-1.0.dist-info/METADATA: has 67,108,865 bytes" in faults(path)
