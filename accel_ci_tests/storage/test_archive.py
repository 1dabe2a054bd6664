from __future__ import annotations

import gzip
import io
import stat
import tarfile
from pathlib import Path

import pytest

from accel_ci.storage.archive import TarError, gunzip, unpack


def archive(*entries: tuple[str, str, int], mode: str = "w") -> io.BytesIO:
    """A tar file of (name, target of a link or "", permissions)."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as tar:  # type: ignore[call-overload]
        for name, target, permissions in entries:
            info = tarfile.TarInfo(name)
            info.mode = permissions
            if target:
                info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    packed.seek(0)
    return packed


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_entries_inside_the_folder_are_unpacked(tmp_path: Path, mode: str) -> None:
    unpack(archive(("a/run", "", 0o4755), ("a/link", "run", 0o777), mode=mode), tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out" / "a" / "run").stat().st_mode) == 0o755, "no privileges come out of an archive"
    assert (tmp_path / "out" / "a" / "link").is_symlink()


@pytest.mark.parametrize(("name", "target"), [("../outside", ""), ("link", "../outside"), ("link", "/etc/passwd")])
def test_entries_that_lead_outside_are_refused(tmp_path: Path, name: str, target: str) -> None:
    with pytest.raises(TarError):
        unpack(archive((name, target, 0o644)), tmp_path / "out")
    assert not (tmp_path / "outside").exists()


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TarError):
        unpack(io.BytesIO(b"no archive"), tmp_path)


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in ("a", "b"):
            info = tarfile.TarInfo(name)
            info.size = 1 << 20
            tar.addfile(info, io.BytesIO(bytes(1 << 20)))
    packed.seek(0)
    with pytest.raises(TarError, match="b: the archive unpacks to more than 1,500,000 bytes"):
        unpack(packed, tmp_path / "out", limit=1_500_000)
    packed.seek(0)
    with pytest.raises(TarError, match="b: the archive has more than 1 entries"):
        unpack(packed, tmp_path / "few", files=1)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (gzip.compress(bytes(1001)), "more than 1,000 bytes"),
        (gzip.compress(b"x")[:-4], "cut short"),
        (b"plain", "not a gzip stream"),
    ],
    ids=["long", "cut", "plain"],
)
def test_gzip_streams_have_a_limit(content: bytes, problem: str) -> None:
    assert gunzip(gzip.compress(bytes(1000)), 1000) == bytes(1000)
    with pytest.raises(ValueError, match=problem):
        gunzip(content, 1000)
