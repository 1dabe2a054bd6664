from __future__ import annotations

import io
import stat
import tarfile
from pathlib import Path

import pytest

from accel_ci.storage.archive import TarError, unpack


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
