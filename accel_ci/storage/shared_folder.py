"""Share the small files of a data folder between machines, through a bucket: manifests and the HUD's pages.

Each machine has a copy of the folder. What is written goes into the bucket first; `bring` makes a part of the copy like the
bucket. Two files are the same if the local content has the ETag of the object, which is its MD5 in any S3 that does not
encrypt by KMS; there, each look brings the file again. Where thousands of files are missing, they come in packs
(`accel_ci.storage.packs`). Large files, by digest, are in `accel_ci.storage.artifacts`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Protocol

from accel_ci.errors import AccelCiError
from accel_ci.storage.packs import MANY, bring_from_packs, pack_files
from accel_ci.storage.shared_lease import turn

if TYPE_CHECKING:
    from accel_ci.storage.object_store import Entry, SharedFiles

_AT_ONCE = 10
"""The number of files that travel at the same time: as many as a client of S3 has connections."""

_OF_ONE_MACHINE = (".put-", ".index")
"""The beginnings of names that mean something on one machine only: scratch files and caches."""


class FolderShare(Protocol):
    """Shares the files below a data folder with other machines."""

    is_shared: bool
    """False if the folder belongs to one machine."""

    def location(self, path: Path) -> str:
        """Return the place of a file, for people."""

    def bring(self, *folders: Path, packed: bool = False) -> None:
        """Make the local files below the folders those that are shared; `packed` ones are many, and seldom change."""

    def bring_file(self, path: Path) -> None:
        """Make a local file the shared one."""

    def create(self, path: Path, content: bytes) -> bool:
        """Share a file that is new. Return False if there is one: the first writer's stays."""

    def send(self, path: Path, content: bytes) -> None:
        """Share the content of a file, before it is written here."""

    def version(self, path: Path) -> Entry | None:
        """Return the version of a file that is shared now; None if there is none."""

    def replace(self, path: Path, content: bytes, seen: Entry | None) -> bool:
        """Share the content of a file if the shared one is still the version `seen`. Return False if it is another."""

    def send_folder(self, folder: Path, last: str = "", check: Callable[[], None] = lambda: None) -> None:
        """Share all files below a folder as they are here, the one of the name `last` after the others, and no others.

        Calls `check` before each file, which ends the sending if it raises.
        """

    def turn(self, path: Path) -> AbstractContextManager[Callable[[], None]]:
        """Have the turn of all machines at what the path names; see `accel_ci.storage.shared_lease`."""

    def remove(self, path: Path) -> None:
        """Remove a file for everybody, before it is removed here."""


class Unshared:
    """Shares nothing: the data folder belongs to one machine."""

    is_shared = False

    def location(self, path: Path) -> str:
        """See `FolderShare`."""
        return str(path)

    def bring(self, *folders: Path, packed: bool = False) -> None:
        """See `FolderShare`."""

    def bring_file(self, path: Path) -> None:
        """See `FolderShare`."""

    def create(self, path: Path, content: bytes) -> bool:
        """See `FolderShare`."""
        return True

    def send(self, path: Path, content: bytes) -> None:
        """See `FolderShare`."""

    def version(self, path: Path) -> Entry | None:
        """See `FolderShare`."""
        return None

    def replace(self, path: Path, content: bytes, seen: Entry | None) -> bool:
        """See `FolderShare`. A lock keeps other processes of this machine away."""
        return True

    def send_folder(self, folder: Path, last: str = "", check: Callable[[], None] = lambda: None) -> None:
        """See `FolderShare`."""

    def turn(self, path: Path) -> AbstractContextManager[Callable[[], None]]:
        """See `FolderShare`."""
        return nullcontext(lambda: None)

    def remove(self, path: Path) -> None:
        """See `FolderShare`."""


class SharedFolder:
    """A data folder whose files are shared through a bucket."""

    is_shared = True

    def __init__(self, root: Path, objects: SharedFiles) -> None:
        self._root, self._objects = root, objects

    def location(self, path: Path) -> str:
        """See `FolderShare`."""
        return self._objects.location(self._name(path))

    def bring(self, *folders: Path, packed: bool = False) -> None:
        """See `FolderShare`. A file that is not shared goes, unless it was written after the look at the bucket."""
        looked_at = time()
        wanted = [entry for folder in folders for entry in self._objects.list_below(self._name(folder))]
        shared = {self._path(entry) for entry in wanted}
        missing = [entry for entry in wanted if not self._has(entry)]
        if packed and len(missing) >= MANY:
            missing = bring_from_packs(self._objects, {entry.name: entry for entry in wanted}, missing, self._path)
        self._together(self._bring_entry, missing)
        if packed and len(missing) >= MANY:
            pack_files(self._objects, missing, self._path)
        for path in (path for folder in folders for path in _files_below(folder) if path not in shared):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < looked_at:
                    path.unlink()

    def bring_file(self, path: Path) -> None:
        """See `FolderShare`."""
        entry = self._objects.find(self._name(path))
        if entry is None:
            path.unlink(missing_ok=True)
        elif not self._has(entry):
            self._bring_entry(entry)

    def create(self, path: Path, content: bytes) -> bool:
        """See `FolderShare`."""
        return self._objects.create(self._name(path), content)

    def send(self, path: Path, content: bytes) -> None:
        """See `FolderShare`."""
        self._objects.put_bytes(self._name(path), content)

    def version(self, path: Path) -> Entry | None:
        """See `FolderShare`."""
        return self._objects.find(self._name(path))

    def replace(self, path: Path, content: bytes, seen: Entry | None) -> bool:
        """See `FolderShare`."""
        return self._objects.replace(self._name(path), content, seen) is not None

    def send_folder(self, folder: Path, last: str = "", check: Callable[[], None] = lambda: None) -> None:
        """See `FolderShare`."""
        there = {entry.name: entry for entry in self._objects.list_below(self._name(folder))}
        here = {self._name(path): path for path in _files_below(folder)}
        changed = [path for name, path in here.items() if name not in there or not self._has(there[name])]

        def send(path: Path) -> None:
            check()
            self.send(path, path.read_bytes())

        self._together(send, (path for path in changed if path != folder / last))
        self._together(send, (path for path in changed if path == folder / last))
        check()
        self._together(self._objects.delete, there.keys() - here.keys())

    def turn(self, path: Path) -> AbstractContextManager[Callable[[], None]]:
        """See `FolderShare`."""
        return turn(self._objects, self._name(path))

    def remove(self, path: Path) -> None:
        """See `FolderShare`."""
        self._objects.delete(self._name(path))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _path(self, entry: Entry) -> Path:
        """The local file of an object. Raises `AccelCiError` for a name that leads out of the folder."""
        if {"", ".", ".."} & set(entry.name.split("/")):
            raise AccelCiError(f"{self._objects.location(entry.name)} is not the name of a shared file; delete that object")
        return self._root / entry.name

    def _has(self, entry: Entry) -> bool:
        try:
            content = self._path(entry).read_bytes()
        except OSError:
            return False
        return len(content) == entry.size and hashlib.md5(content, usedforsecurity=False).hexdigest() == entry.version

    def _bring_entry(self, entry: Entry) -> None:
        path = self._path(entry)
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # removed or replaced since the look: whoever did it may still be at work
            self._objects.download(entry, path)

    @staticmethod
    def _together(do: Callable[..., None], each: Iterable[object]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(do, each))


def _files_below(folder: Path) -> list[Path]:
    """List the files below a folder that several machines may share; symbolic links are none of them."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in files if not path.name.startswith(_OF_ONE_MACHINE) and not path.name.endswith(".lock")]
