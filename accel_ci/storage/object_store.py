"""Keep the store's files in a folder, or in a bucket behind the same protocol (`accel_ci.storage.bucket`).

Listing, atomic writing and reading of named files belong here; the contents of the files do not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from accel_ci.errors import AccelCiError
from accel_ci.storage.atomic_file import remove_abandoned, whole_file


@dataclass(frozen=True)
class Entry:
    """A file in a store. `version` changes whenever the content does; `size` is in bytes."""

    name: str
    version: str
    size: int


class ObjectStore(Protocol):
    """Named files, each of them whole or absent. Names have `/` between their parts."""

    def list(self, folder: str, first: str, last: str) -> list[Entry]:
        """List the files in the subfolders of `folder` named `first` to `last`, by name."""

    def find(self, name: str) -> Entry | None:
        """Find the file of that name."""

    def fetch(self, entry: Entry) -> Path:
        """Return a local file with the content. Raises `FileNotFoundError` if that version is gone."""

    def put(self, name: str, content: pa.Buffer) -> Entry:
        """Write a file atomically, in place of an earlier one; one with the same content stays untouched."""

    def delete(self, name: str) -> None:
        """Delete the file if it exists."""


class SharedFiles(Protocol):
    """Named files that several machines share, each of them whole or absent."""

    def location(self, name: str) -> str:
        """Return the place of a file, for people."""

    def list_below(self, folder: str) -> Sequence[Entry]:
        """List all files below a folder, however deep."""

    def find(self, name: str) -> Entry | None:
        """Find the file of that name."""

    def download(self, entry: Entry, path: Path) -> None:
        """Write the content into a file, whole or not at all. Raises `FileNotFoundError` if that version is gone."""

    def upload(self, path: Path, name: str) -> None:
        """Write a file of any size, in place of an earlier one."""

    def put_bytes(self, name: str, content: bytes) -> Entry:
        """Write a file, in place of an earlier one."""

    def create(self, name: str, content: bytes) -> bool:
        """Write a file that is new. Return False if there is one: the first writer's stays."""

    def replace(self, name: str, content: bytes, seen: Entry | None) -> Entry | None:
        """Write a file if it is still as `seen` (None: there was none). Return None if another writer was faster."""

    def delete(self, name: str) -> None:
        """Delete the file if it exists."""


class FolderStore:
    """A local folder. A writer that is killed leaves a scratch file, which the next writer removes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def list(self, folder: str, first: str, last: str) -> list[Entry]:
        """See `ObjectStore`."""
        top = self.root / folder
        try:
            days = sorted(entry.name for entry in os.scandir(top) if first <= entry.name <= last and entry.is_dir())
        except FileNotFoundError:
            return []
        found: list[Entry] = []
        for day in days:
            prefix = f"{folder}/{day}" if folder else day
            with os.scandir(top / day) as files:
                for file in sorted(files, key=lambda file: file.name):
                    with contextlib.suppress(FileNotFoundError):  # another process may remove it meanwhile
                        found.append(_entry(f"{prefix}/{file.name}", file.stat()))
        return found

    def find(self, name: str) -> Entry | None:
        """See `ObjectStore`."""
        try:
            return _entry(name, (self.root / name).stat())
        except FileNotFoundError:
            return None

    def fetch(self, entry: Entry) -> Path:
        """See `ObjectStore`."""
        return self.root / entry.name

    def put(self, name: str, content: pa.Buffer) -> Entry:
        """See `ObjectStore`. Raises `AccelCiError` if the file cannot be written."""
        path = self.root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(path.parent)
            status = _status_if_same(path, content) or _write(path, content)
        except OSError as error:
            raise AccelCiError(f"{path} cannot be written: {error.strerror}; make room or choose another folder") from error
        return _entry(name, status)

    def delete(self, name: str) -> None:
        """See `ObjectStore`."""
        (self.root / name).unlink(missing_ok=True)


class OverlayStore:
    """A store that is read alone: what is written goes into another one, which is asked first from then on."""

    def __init__(self, below: ObjectStore, above: ObjectStore) -> None:
        self._below, self._above = below, above

    def list(self, folder: str, first: str, last: str) -> list[Entry]:
        """See `ObjectStore`."""
        found = {entry.name: entry for store in (self._below, self._above) for entry in store.list(folder, first, last)}
        return [found[name] for name in sorted(found)]

    def find(self, name: str) -> Entry | None:
        """See `ObjectStore`."""
        return self._above.find(name) or self._below.find(name)

    def fetch(self, entry: Entry) -> Path:
        """See `ObjectStore`."""
        return (self._above if self._above.find(entry.name) == entry else self._below).fetch(entry)

    def put(self, name: str, content: pa.Buffer) -> Entry:
        """See `ObjectStore`."""
        return self._above.put(name, content)

    def delete(self, name: str) -> None:
        """See `ObjectStore`. Raises `AccelCiError`: the store below is not changed."""
        raise AccelCiError(f"{name} cannot be deleted from a store that is only read")


def _entry(name: str, status: os.stat_result) -> Entry:
    return Entry(name, f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}", status.st_size)


def _status_if_same(path: Path, content: pa.Buffer) -> os.stat_result | None:
    """The status of the file if it has this content."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            return status if status.st_size == content.size and file.read() == content.to_pybytes() else None
    except FileNotFoundError:
        return None


def _write(path: Path, content: pa.Buffer) -> os.stat_result:
    """Write the file. Return its own status: the name may soon be another writer's file."""
    with whole_file(path, durable=True) as file:
        file.write(content)
        file.flush()
        return os.fstat(file.fileno())
