"""A wheel's zip archive: checked against limits before anything unpacks it, then read once.

Here belong the rules for zip archives that installers and the package index enforce, and the facts about each file that
other checks need. The meaning of files is in `dist_info.py`, `record.py` and `content.py`.
"""

from __future__ import annotations

import hashlib
import re
import stat
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from accel_ci.config.settings import Wheels
from accel_ci.config.values import size_in_bytes
from accel_ci.model import CheckResult
from accel_ci.wheels.findings import Findings, shown

DIST_INFO_LIMIT = 1 << 26
"""The largest size in bytes of a file in the dist-info folder; checks and installers read these as a whole."""

PARSED_LIMITS = {"METADATA": 1 << 22, "WHEEL": 1 << 16, "entry_points.txt": 1 << 20, "RECORD": 1 << 25}
"""The largest sizes of those that are also parsed, which takes many times their size in memory."""

FILES_LIMIT = 100_000
"""The largest number of files in a wheel."""

_DIRECTORY_LIMIT = 1 << 24  # bytes of the zip directory: some 100,000 files
_HARMLESS = 1 << 26  # bytes that an archive may always unpack to
_CHUNK = 1 << 20
_HEAD = 64
_LOCAL_HEADER = struct.Struct("<4s2xHH8xLLHH")
_ENCRYPTED, _DESCRIPTOR, _UTF8 = 0x1, 0x8, 0x800
_DESCRIPTOR_BYTES = 24
_ZIP64 = 0xFFFFFFFF
_DAMAGE = (BadZipFile, OSError, EOFError, ValueError, OverflowError, RuntimeError, struct.error, zlib.error)
_SHARED_OBJECT = re.compile(r"\.so(\.[\d.]+)?$")


@dataclass(frozen=True)
class Member:
    """A file in a wheel: its size in bytes, unpacked and packed, its digest and its first bytes.

    `is_module`: it is a library that defines the Python module of its name.
    """

    size: int
    packed: int
    sha256: bytes
    head: bytes
    is_module: bool = False


@dataclass(frozen=True)
class Contents:
    """The files of a wheel by their paths in it, without folders."""

    path: Path
    members: Mapping[str, Member]

    def read(self, name: str) -> bytes:
        """Return a small file of the wheel."""
        with ZipFile(self.path) as archive:
            return archive.read(name)

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open a file of the wheel."""
        with ZipFile(self.path) as archive, archive.open(name) as file:
            yield file  # type: ignore[misc]  # it reads bytes

    def all_chunks(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Return each file with its content in pieces."""
        with ZipFile(self.path) as archive:
            for name in self.members:
                with archive.open(name) as file:
                    yield name, iter(partial(file.read, _CHUNK), b"")

    def folders(self, ending: str) -> list[str]:
        """Return the folders at the top whose names end so."""
        tops = {top for name in self.members for top, slash, _ in [name.partition("/")] if slash}
        return sorted(top for top in tops if top.endswith(ending))


def read_archive(wheel: Path, rules: Wheels) -> tuple[CheckResult, Contents | None]:
    """Check an archive and read its files in bounded memory; there are no contents if the check fails."""
    found = Findings("archive")
    contents = None
    try:
        contents = _read(wheel, rules, found)
    except FileNotFoundError:
        found.fault("there is no such file")
    except _DAMAGE as error:
        found.fault(f"cannot be read as a zip archive: {error}{_kind_of(wheel)}")
    result = found.result(f"{len(contents.members)} files" if contents else "")
    return result, contents if result.passed else None


def path_fault(path: str) -> str | None:
    """Return what is wrong with the path of a file in a wheel; None if nothing is."""
    if not path.isprintable():
        return "has control characters in its name"
    if "\\" in path:
        return "has a backslash in its path, which must use /"
    if path.startswith("/") or re.match("[A-Za-z]:", path):
        return "is an absolute path"
    parts = path.removesuffix("/").split("/")
    if ".." in parts:
        return "leads out of the wheel"
    return "is not a normalised path" if "" in parts or "." in parts else None


def _read(wheel: Path, rules: Wheels, found: Findings) -> Contents | None:
    status = wheel.stat()
    size = status.st_size
    if not stat.S_ISREG(status.st_mode) or not size:
        kind = "is a folder" if stat.S_ISDIR(status.st_mode) else "is not a regular file"
        found.fault("the file is empty" if stat.S_ISREG(status.st_mode) else f"{kind}, not a wheel")
        return None
    with wheel.open("rb") as file:
        _check_end(file, size, found)
        if found.faults:
            return None
        with ZipFile(file) as archive:
            entries = archive.infolist()
            _check_limits(entries, size, rules, found)
            for entry in entries:
                _check_entry(entry, found)
            _check_names(entries, found)
            if not found.faults:
                _check_layout(file, archive, found)
            if found.faults:
                return None
            members = {}
            for entry in entries:
                if not entry.is_dir() and (member := _read_member(archive, entry, found)):
                    members[entry.filename] = member
            return Contents(wheel, members)


def _kind_of(wheel: Path) -> str:
    """Return a guess at what a file is that is no zip archive."""
    try:
        with wheel.open("rb") as file:
            start = file.read(256).lstrip().lower()
    except OSError:
        return ""
    if start.startswith((b"<!doctype html", b"<html")):
        return "; it is an HTML page, often the error page of a server"
    if start.startswith(b"version https://git-lfs"):
        return "; it is a pointer of Git LFS, whose file has not been fetched"
    if start.startswith(b"\x1f\x8b"):
        return "; it is compressed with gzip"
    return "; it begins like one, so it may be cut short" if start.startswith(b"pk\3\4") else ""


def _check_end(file: BinaryIO, size: int, found: Findings) -> None:
    """Check the end of the archive, which names the size of its directory, before the directory is read."""
    start = file.seek(max(0, size - (1 << 16) - 22 - 76))
    tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or at + 22 > len(tail):
        raise BadZipFile("it has no end of a zip archive")
    (directory,), (comment,) = struct.unpack_from("<L", tail, at + 12), struct.unpack_from("<H", tail, at + 20)
    if directory == _ZIP64 and (at_64 := tail.rfind(b"PK\6\6", 0, at)) >= 0:
        (directory,) = struct.unpack_from("<Q", tail, at_64 + 40)
    if directory > _DIRECTORY_LIMIT:
        found.fault(f"its directory has {directory:,} bytes, {directory - _DIRECTORY_LIMIT:,} over the limit")
    if start + at + 22 + comment != size:
        found.fault("bytes follow the end of the zip archive")


def _check_limits(entries: list[ZipInfo], size: int, rules: Wheels, found: Findings) -> None:
    unpacked, budget = sum(entry.file_size for entry in entries), size_in_bytes(rules.unpacked_budget)
    if unpacked > budget:
        found.fault(f"unpacks to {unpacked:,} bytes, {unpacked - budget:,} over wheels.unpacked_budget")
    if unpacked > max(_HARMLESS, size * rules.expansion_limit):
        times = f"{unpacked // size:,} times its size"
        found.fault(f"unpacks to {unpacked:,} bytes, {times}: wheels.expansion_limit is {rules.expansion_limit}")
    if len(entries) > FILES_LIMIT:
        found.fault(f"has {len(entries):,} files, more than {FILES_LIMIT:,}")
    for entry in entries:
        folder, _, name = entry.filename.partition("/")
        limit = PARSED_LIMITS.get(name, DIST_INFO_LIMIT)
        if entry.file_size > limit and folder.endswith(".dist-info"):
            found.fault(f"{shown(entry.filename)}: has {entry.file_size:,} bytes, more than {limit:,}")


def _check_entry(entry: ZipInfo, found: Findings) -> None:
    """Check one entry of the directory."""
    name = shown(entry.orig_filename)
    if fault := path_fault(entry.orig_filename):
        found.fault(f"{name}: {fault}")
    elif not entry.filename.isascii() and not entry.flag_bits & _UTF8:
        found.fault(f"{name}: its name is not marked as UTF-8")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind == stat.S_IFLNK:
        found.fault(f"{name}: is a symbolic link, which installers write as a text file")
    elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        found.fault(f"{name}: is neither a file nor a folder")
    if entry.flag_bits & _ENCRYPTED:
        found.fault(f"{name}: is encrypted")
    elif entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):  # others are also unpacked without a limit of memory
        found.fault(f"{name}: is packed by method {entry.compress_type}, which not every installer can unpack")


def _check_names(entries: list[ZipInfo], found: Findings) -> None:
    """Check that no two entries would be written to one place."""
    names = Counter(entry.filename for entry in entries)
    for name, count in names.items():
        if count > 1:
            found.fault(f"{shown(name)}: is in the archive {count} times")
    files = {name for name in names if not name.endswith("/")}
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    for name in sorted(files & folders):
        found.fault(f"{shown(name)}: is both a file and a folder")
    alike = Counter(name.casefold() for name in files)
    for name in sorted(files):
        if alike[name.casefold()] > 1:
            found.warn(f"{shown(name)}: differs from another file only in case")


def _check_layout(file: BinaryIO, archive: ZipFile, found: Findings) -> None:
    """Check that the archive reads the same from its start as by its directory: installers read it either way."""
    end = slack = 0
    for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
        name = shown(entry.filename)
        if not end <= entry.header_offset <= end + slack:
            found.fault(f"{name}: bytes before it belong to no file, or to two")
        file.seek(entry.header_offset)
        signature, flags, method, packed, size, name_size, extra_size = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        own_name = file.read(name_size).decode("utf-8" if flags & _UTF8 else "cp437", "replace")
        differs = signature != b"PK\3\4" or own_name != entry.orig_filename or method != entry.compress_type
        if not flags & _DESCRIPTOR and _ZIP64 not in (packed, size):
            differs |= (packed, size) != (entry.compress_size, entry.file_size)
        if differs:
            found.fault(f"{name}: its header and the directory of the archive disagree")
        end = entry.header_offset + _LOCAL_HEADER.size + name_size + extra_size + entry.compress_size
        slack = _DESCRIPTOR_BYTES if flags & _DESCRIPTOR else 0
    if not end <= archive.start_dir <= end + slack:
        found.fault("bytes between the last file and the directory of the archive belong to no file")


def _read_member(archive: ZipFile, entry: ZipInfo, found: Findings) -> Member | None:
    """Read a file in pieces; its checksum is compared at its end."""
    digest, size, head, rest, is_module = hashlib.sha256(), 0, b"", b"", False
    stem = entry.filename.rpartition("/")[2].partition(".")[0]
    initializer = f"PyInit_{stem}\0".encode()
    is_library = _SHARED_OBJECT.search(entry.filename) is not None
    try:
        with archive.open(entry) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                head = head or chunk[:_HEAD]
                if is_library and not is_module:
                    is_module = initializer in rest + chunk
                    rest = chunk[-len(initializer) :]
    except _DAMAGE as error:
        found.fault(f"{shown(entry.filename)}: is damaged: {error or 'it ends early'}")
        return None
    if size != entry.file_size:
        found.fault(f"{shown(entry.filename)}: is damaged: it has {size:,} bytes instead of {entry.file_size:,}")
    return Member(size, entry.compress_size, digest.digest(), head, is_module)
