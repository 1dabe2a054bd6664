"""A wheel's RECORD against its files: every file is named once, with the right digest and size, and nothing else is.

By the binary distribution format and the specification of RECORD; installers need not check it, and most do not.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Iterator

from accel_ci.model import CheckResult
from accel_ci.wheels.archive import Contents, path_fault
from accel_ci.wheels.findings import Findings, shown

_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_STRONG = {"sha256", "sha384", "sha512", "sha3_256", "sha3_384", "sha3_512", "blake2b", "blake2s"}
_LINES_TOO_MANY = 1000
_NO_PADDING = re.compile(r"[A-Za-z0-9_-]+")


def check_record(contents: Contents, dist_info: str) -> CheckResult:
    """Compare RECORD with the files of the wheel."""
    found = Findings("record")
    name = f"{dist_info}/RECORD"
    signatures = {f"{dist_info}/{signature}" for signature in _SIGNATURES}
    named: set[str] = set()
    for path, digest, size in _rows(contents, name, found):
        file = shown(path)
        if fault := path_fault(path):
            found.fault(f"{file}: {fault} in RECORD")
        elif path in named:
            found.fault(f"{file}: is in RECORD twice")
        elif path.endswith("/"):
            found.warn(f"{file}: is a folder, which does not belong in RECORD")
        elif path not in contents.members:
            found.fault(f"{file}: is in RECORD, but not in the wheel")
        elif path == name:
            if digest:
                found.fault(f"{file}: has its own digest, which cannot be right")
        elif path not in signatures:
            _compare(contents, path, digest, size, found)
        named.add(path)
    if name in contents.members and named:
        for path in contents.members.keys() - named - signatures - {name}:
            found.fault(f"{shown(path)}: is not in RECORD")
        if name not in named:
            found.warn(f"{name}: does not name itself")
    found.faults.sort()
    return found.result(f"names all {len(contents.members)} files")


def _rows(contents: Contents, name: str, found: Findings) -> Iterator[tuple[str, str, str]]:
    """Return path, digest and size of each line."""
    if name not in contents.members:
        found.fault(f"{name}: is missing")
        return
    try:
        text = contents.read(name).decode("utf-8")
        if not text.strip():
            found.fault(f"{name}: is empty")
        for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), 1):
            if number > len(contents.members) + _LINES_TOO_MANY:
                found.fault(f"{name}: has more lines than the wheel has files ({len(contents.members):,})")
                return
            if len(row) == 3 and row[0]:
                yield row[0], row[1], row[2]
            elif row:
                found.fault(f"{name}: line {number} is not a path, a digest and a size")
    except UnicodeDecodeError as error:
        found.fault(f"{name}: is not UTF-8: {error.reason} at byte {error.start}")
    except csv.Error as error:
        found.fault(f"{name}: is not CSV: {error}")


def _compare(contents: Contents, path: str, digest: str, size: str, found: Findings) -> None:
    file, member = shown(path), contents.members[path]
    algorithm, separator, value = digest.partition("=")
    if not separator:
        found.fault(f"{file}: has no digest in RECORD")
    elif algorithm not in _STRONG:
        found.fault(f"{file}: its digest in RECORD is {shown(algorithm)}; sha256 or better is needed")
    elif not _NO_PADDING.fullmatch(value):
        found.fault(f"{file}: its digest in RECORD is not URL-safe base64 without padding")
    elif base64.urlsafe_b64encode(_digest(contents, path, algorithm)).rstrip(b"=").decode() != value:
        found.fault(f"{file}: its content does not match its digest in RECORD")
    if not size:
        found.warn(f"{file}: has no size in RECORD")
    elif not (size.isascii() and size.isdigit()) or size.lstrip("0") != str(member.size).lstrip("0"):
        found.fault(f"{file}: has {member.size:,} bytes, but {shown(size)} in RECORD")


def _digest(contents: Contents, path: str, algorithm: str) -> bytes:
    if algorithm == "sha256":
        return contents.members[path].sha256
    digest = hashlib.new(algorithm)
    with contents.open(path) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.digest()
