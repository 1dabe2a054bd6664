"""Explain the failures of disks in one line: full, read-only, forbidden, away. They come as errors of many libraries.

The text of an error is all that Dagster, SQLite, Arrow and other programs have in common, so the text decides.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_FULL = "the disk is full"
_LONG_PATH = ("a path is too long", "use a data folder with a shorter path (ACCEL_CI_HOME)")
_FREE = "free some space there"
_FAULTS = (
    (r"No space left on device|database or disk is full", _FULL, _FREE),
    (r"Disk quota exceeded", "the disk quota is used up", "raise it, or remove something"),
    (r"\[Errno 27\]", "a file has reached the limit of its size", "raise `ulimit -f`"),
    (r"Read-only file system|attempt to write a readonly database", "the folder is read-only", "make it writable"),
    (r"\[Errno (1|13)\]", "permission is denied", "let this user read and write there"),
    (r"\[Errno 36\]", *_LONG_PATH),
    (r"\[Errno (17|20)\]", "a file is where a folder is needed", "move it away"),
    (r"\[Errno (5|107|116)\]", "the disk fails", "repair or remount it"),
    (r"\[Errno (23|24)\]", "no more files can be opened", "raise `ulimit -n`"),
    (r"database disk image is malformed|file is not a database",
     "a database is damaged", "set it aside with `accel-ci doctor --repair`"),
    (r"No usable temporary directory", "there is no folder for temporary files", "make one and name it in TMPDIR"),
)  # fmt: skip
_SQLITE = r"disk I/O error|unable to open database file"
_NAMED_PATH = re.compile(r"\[Errno \d+\] [^:\n]*: b?(?P<path>'[^'\n]*'|\"[^\"\n]*\")")
_LITTLE_BYTES = 1 << 20
_LONG_PATH_BYTES = 400  # SQLite takes 512, including the name of its file


def describe_disk_fault(error: str, home: Path) -> str | None:
    """One line that names the fault of a disk behind an error, the path, and what to do; None if it is something else.

    `home` is the data folder, for errors that name no path.
    """
    for pattern, fault, advice in _faults(home):
        if found := re.search(pattern, error):
            line = error[error.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
            named = _NAMED_PATH.search(line)
            place = named["path"][1:-1] if named else str(home)
            return f"{fault}: {place}; {advice} and run the same again, which goes on where this stopped"
    return None


def texts_of(error: BaseException) -> str:
    """The texts of an error and of those that it comes from, one in a line."""
    lines: list[str] = []
    seen: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in seen:
        seen.append(following)
        lines.append(str(following))
        following = following.__cause__ or following.__context__
    return "\n".join(lines)


def _faults(home: Path) -> Iterator[tuple[str, str, str]]:
    yield from _FAULTS
    free = _LITTLE_BYTES
    with suppress(OSError):
        free = shutil.disk_usage(home).free
    if free < _LITTLE_BYTES:
        yield _SQLITE, _FULL, _FREE
    elif len(os.fsencode(home)) > _LONG_PATH_BYTES:
        yield _SQLITE, *_LONG_PATH
    else:
        yield _SQLITE, "a database cannot be written", "see that its folder is there and is writable"
