"""The index of revisions: their keys, triggers and times, newest first, without reading every `revision.json`.

It is a cache: an entry counts only while its `revision.json` is the very file that it was made from (times, size and inode).
Whatever is missing, new or damaged is read from the manifests again, so any number of processes may read and write it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import cast

from accel_ci.errors import AccelCiError
from accel_ci.model import Revision, Trigger
from accel_ci.storage.atomic_file import write_whole_file

_LOG = logging.getLogger(__name__)
_NAME = ".index"

_Entry = tuple[list[int], str, str]
"""The signature of `revision.json`, `seen_at` in ISO 8601, and the trigger."""


@dataclass(frozen=True)
class IndexedRevision:
    """A revision, with the time of its creation.

    If `revision.json` is missing or unreadable, `trigger` is None and `seen_at` the time of the folder's last change.
    """

    key: str
    seen_at: datetime
    trigger: Trigger | None


def read_index(builds: Path, read_revision: Callable[[str], Revision | None]) -> list[IndexedRevision]:
    """Every revision below `builds`, newest first; `read_revision` reads the manifest of a key."""
    before = _load(builds / _NAME)
    now: dict[str, _Entry] = {}
    found = []
    for key in list_folders(builds):
        signature = _signature(f"{builds}/{key}/revision.json")
        entry = before.get(key)
        if signature is None or entry is None or entry[0] != signature:
            entry = _make_entry(key, signature, read_revision) if signature else None
        if entry is None:
            found.append(IndexedRevision(key, _changed_at(builds / key), None))
        else:
            now[key] = entry
            found.append(IndexedRevision(key, datetime.fromisoformat(entry[1]), cast(Trigger, entry[2])))
    if now != before:
        _LOG.debug("the index of %s is written again: %d revisions", builds, len(now))
        content = json.dumps(now).encode()
        with contextlib.suppress(OSError):  # a read-only data folder, say: the next reader reads the files again
            write_whole_file(builds / _NAME, _digest(content).encode() + b"\n" + content)
    return sorted(found, key=lambda one: (one.seen_at, one.key), reverse=True)


def list_folders(folder: Path, *, follow_links: bool = True) -> list[str]:
    """The names of the folders in a folder without the hidden ones; none when it is missing."""
    try:
        with os.scandir(folder) as entries:
            return [one.name for one in entries if not one.name.startswith(".") and one.is_dir(follow_symlinks=follow_links)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _signature(file: str) -> list[int] | None:
    with contextlib.suppress(OSError):
        seen = os.stat(file)  # noqa: PTH116
        return [seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size, seen.st_ino]
    return None


def _make_entry(key: str, signature: list[int], read_revision: Callable[[str], Revision | None]) -> _Entry | None:
    try:
        revision = read_revision(key)
    except AccelCiError as error:
        _LOG.warning("unreadable: %s", error)
        return None
    if revision is None:
        return None
    created = revision.created_at
    in_utc = created.replace(tzinfo=timezone.utc) if created.tzinfo is None else created.astimezone(timezone.utc)
    return signature, in_utc.isoformat(), revision.trigger


def _load(file: Path) -> dict[str, _Entry]:
    """The entries of the index; none when it is missing, damaged or of another version."""
    with contextlib.suppress(OSError, ValueError):
        digest, _, content = file.read_bytes().partition(b"\n")
        if digest.decode("ascii") == _digest(content):
            return {key: (signature, seen_at, trigger) for key, (signature, seen_at, trigger) in json.loads(content).items()}
    return {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(b"revision index 1\n" + content).hexdigest()


def _changed_at(folder: Path) -> datetime:
    times = [0.0]
    for path in (folder / "revision.json", folder):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return datetime.fromtimestamp(max(times), timezone.utc)
