"""Seal folders, and find what has changed in them since: files that code under test could write must be what they were.

A seal is a file in the folder. It has the status of each file (size, times, inode) and its digest. A file with the same
status is taken as unchanged, because nobody but the kernel sets the time of a file's last change. Other files are read.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from accel_ci.storage.artifacts import sha256_of
from accel_ci.storage.atomic_file import write_whole_file

_Entry = tuple[str, list[int]]
"""Kind, permissions and content of a file, link or folder as one text, and the status that is taken for it."""

_SEAL_BYTES = 1 << 28


def seal(folder: Path, record: str, *, leave_out: Sequence[str] = ()) -> None:
    """Note what is in a folder, in its file `record`. `leave_out` are paths in it that may change."""
    _write(folder / record, {name: _entry(folder, name) for name in _names(folder, (record, *leave_out))})


def changes(folder: Path, record: str, *, leave_out: Sequence[str] = ()) -> list[str]:
    """Return what has changed since the folder was sealed, one line for each path; a folder without a seal has changed."""
    try:
        before = _read(folder / record)
    except (OSError, ValueError, TypeError, AttributeError):
        return [f"{record} is missing or damaged"]
    found, now, doubted = [], {}, False
    for name in _names(folder, (record, *leave_out)):
        known = before.get(name)
        if known is None:
            found.append(f"{_shown(name)} was added")
        elif known[1] == _status(folder, name):
            now[name] = known
        else:
            now[name], doubted = _entry(folder, name), True
            if now[name][0] != known[0]:
                found.append(f"{_shown(name)} was changed")
    found += [f"{_shown(name)} was removed" for name in before if not os.path.lexists(folder / name)]
    if doubted and not found:
        with suppress(OSError):
            _write(folder / record, now)
    return sorted(found)


def in_short(changed: Sequence[str]) -> str:
    """Return the first of many changes, and the number of the others."""
    return ", ".join(changed[:5]) + (f" and {len(changed) - 5:,} more" if len(changed) > 5 else "")


def _names(folder: Path, leave_out: Sequence[str]) -> Iterator[str]:
    """The paths of all files, links and folders in a folder, but those that are left out and what is in them."""
    waiting = [""]
    while waiting:
        above = waiting.pop()
        with os.scandir(folder / above) as entries:
            for entry in entries:
                name = f"{above}/{entry.name}" if above else entry.name
                if name not in leave_out:
                    yield name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(name)


def _status(folder: Path, name: str) -> list[int]:
    """A status that is another one when the file has changed; of a folder, whose entries count on their own, its mode."""
    seen = os.lstat(folder / name)
    if stat.S_ISDIR(seen.st_mode):
        return [seen.st_mode]
    return [seen.st_mode, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino]


def _entry(folder: Path, name: str) -> _Entry:
    """Read a file. Its status is from before, so that a change meanwhile is seen the next time."""
    status, path = _status(folder, name), folder / name
    kind, content = stat.S_IFMT(status[0]), ""
    if stat.S_ISLNK(kind):
        content = os.readlink(path)  # noqa: PTH115  # as text, also when it is no path
    elif stat.S_ISREG(kind):
        with path.open("rb") as file:
            content = sha256_of(file)
    return f"{status[0]:o} {content}", status


def _read(file: Path) -> dict[str, _Entry]:
    """Read a seal, which may be a pipe or a link by now."""
    with open(file, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as content:
        return {name: (text, status) for name, (text, status) in json.loads(content.read(_SEAL_BYTES)).items()}


def _write(file: Path, entries: Mapping[str, _Entry]) -> None:
    write_whole_file(file, json.dumps(entries).encode())


def _shown(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")
