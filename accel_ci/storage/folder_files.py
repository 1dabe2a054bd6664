"""Keep shared files in a folder, behind the protocol that a bucket has (`accel_ci.storage.bucket`)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from accel_ci.errors import AccelCiError
from accel_ci.storage.atomic_file import create_whole_file, remove_abandoned, whole_file, write_whole_file
from accel_ci.storage.object_store import Entry, FolderStore


class FolderFiles:
    """The files below a folder. What is written is on the disk, whole or not at all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._store = FolderStore(root)

    def location(self, name: str) -> str:
        """See `SharedFiles`."""
        return str(self._path(name))

    def list_below(self, folder: str) -> Sequence[Entry]:
        """See `SharedFiles`. Scratch files and locks are none of them."""
        files = sorted(path for path in self._path(folder).rglob("*") if path.is_file() and not path.name.startswith("."))
        found = (self.find(path.relative_to(self.root).as_posix()) for path in files)
        return [entry for entry in found if entry is not None]

    def find(self, name: str) -> Entry | None:
        """See `SharedFiles`."""
        self._path(name)
        return self._store.find(name)

    def download(self, entry: Entry, path: Path) -> None:
        """See `SharedFiles`."""
        if self.find(entry.name) != entry:
            raise FileNotFoundError(entry.name)
        with self._path(entry.name).open("rb") as content, whole_file(path) as copy:
            shutil.copyfileobj(content, copy, 1 << 20)

    def upload(self, path: Path, name: str) -> None:
        """See `SharedFiles`."""
        with path.open("rb") as content, whole_file(self._made(name), durable=True) as copy:
            shutil.copyfileobj(content, copy, 1 << 20)

    def put_bytes(self, name: str, content: bytes) -> Entry:
        """See `SharedFiles`."""
        write_whole_file(self._made(name), content, durable=True)
        return self._there(name)

    def create(self, name: str, content: bytes) -> bool:
        """See `SharedFiles`."""
        return create_whole_file(self._made(name), content)

    def replace(self, name: str, content: bytes, seen: Entry | None) -> Entry | None:
        """See `SharedFiles`."""
        path = self._made(name)
        with FileLock(path.with_name(f".{path.name}.lock")):
            if self.find(name) != seen:
                return None
            write_whole_file(path, content, durable=True)
            return self._there(name)

    def delete(self, name: str) -> None:
        """See `SharedFiles`."""
        self._path(name).unlink(missing_ok=True)

    def _there(self, name: str) -> Entry:
        entry = self.find(name)
        if entry is None:
            raise FileNotFoundError(name)
        return entry

    def _made(self, name: str) -> Path:
        """The path of a file, whose folder is there and has nothing that a killed writer left."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path.parent)
        return path

    def _path(self, name: str) -> Path:
        """The path of a file. Raises `AccelCiError` for a name that leads out of the folder."""
        if {"", ".", ".."} & set(name.split("/")):
            raise AccelCiError(f"{name!r} is not the name of a shared file")
        return self.root / name
