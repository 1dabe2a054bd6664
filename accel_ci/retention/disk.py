"""Remove files below a data folder: atomically to readers, resumable, and never through a symbolic link.

A file or folder is first renamed to `.pruned-…` in place, so that nobody sees half of it, and deleted at the end. After a
kill, the next `prune` deletes what has such a name.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

_LOG = logging.getLogger(__name__)
_DAY_S = 86_400.0
_PRUNED = ".pruned-"


@dataclass(frozen=True)
class Pruned:
    """An item that goes: a path below the data folder, or an image of the Docker engine.

    `size_bytes` is what its removal frees; for a Docker image, its size including shared layers. `problem` is the reason if
    it stays.
    """

    kind: str
    name: str
    size_bytes: int
    problem: str | None = None


class Remover:
    """Removes things below a data folder and lists them in `account`; with `dry_run` it only lists them."""

    def __init__(self, home: Path, now_s: float, *, dry_run: bool) -> None:
        self.home = home
        self.dry_run = dry_run
        self.account: list[Pruned] = []
        self._now_s = now_s
        self._aside: list[tuple[int, Path]] = []

    def entries(self, *parts: str) -> Iterator[os.DirEntry[str]]:
        """List the entries of a folder below the data folder; none if it is missing or behind a symbolic link."""
        folder = self.home.joinpath(*parts)
        if folder.resolve() != self.home.resolve().joinpath(*parts):
            _LOG.warning("%s is behind a symbolic link and is left alone", folder)
            return
        try:
            with os.scandir(folder) as entries:
                yield from sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return

    def folders(self, *parts: str) -> list[str]:
        """List the names of the folders in a folder, without links and hidden ones."""
        return [e.name for e in self.entries(*parts) if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")]

    def unused(self, path: Path) -> bool:
        """True if a file or folder exists and has not changed for a day."""
        try:
            return self._now_s - path.lstat().st_mtime > _DAY_S
        except FileNotFoundError:
            return False

    def take(self, kind: str, path: Path, size_bytes: int | None = None) -> bool:
        """Put a file or folder out of sight, for `empty` to delete. Returns False if it stays."""
        if not os.path.lexists(path):
            return True
        item = Pruned(kind, path.relative_to(self.home).as_posix(), size_of(path) if size_bytes is None else size_bytes)
        if not self.dry_run:
            aside = path.with_name(f"{_PRUNED}{uuid.uuid4().hex}")
            try:
                if path.parent.resolve() != self.home.resolve() / path.parent.relative_to(self.home):
                    raise OSError(f"it lies behind a symbolic link, outside of {self.home}")
                path.rename(aside)
            except FileNotFoundError:
                return True
            except OSError as error:
                self.record(replace(item, size_bytes=0, problem=str(error)))
                return False
            self._aside.append((len(self.account), aside))
        self.record(item)
        return True

    def take_unused(self, kind: str, path: Path, record: Path, lock_file: Path) -> bool:
        """Take something if its lock is free and its record, which every use touches, is missing or over a day old."""
        with self.free([lock_file]) as free:
            if not free or not self.unused(record if record.exists() else path) or not self.take(kind, path):
                return False
            if not self.dry_run:
                lock_file.unlink(missing_ok=True)  # whoever waits for it makes a new one
            return True

    @contextmanager
    def free(self, lock_files: list[Path]) -> Iterator[bool]:
        """Hold locks without waiting; yields False if another process holds one."""
        with ExitStack() as held:
            try:
                for lock_file in lock_files:
                    if lock_file.exists() or not self.dry_run:
                        held.enter_context(FileLock(lock_file).acquire(timeout=0))
            except (Timeout, FileNotFoundError):
                yield False
            else:
                yield True

    def record(self, item: Pruned) -> None:
        """List an item that goes or cannot be removed."""
        self.account.append(item)
        if item.problem is not None:
            _LOG.warning("%s %s cannot be removed: %s", item.kind, item.name, item.problem)
        elif not self.dry_run:
            _LOG.info("pruned the %s %s, %d bytes", item.kind, item.name, item.size_bytes)

    def take_leftovers(self) -> None:
        """Take the leftovers of a killed `prune`, and scratch folders of killed runs that are more than a day old."""
        rooms = [("builds",), ("images",), ("sources",), ("rbe", "sources"), ("cache", "wheels"), ("cache", "stack")]
        rooms += [(room, name) for room in ("builds", "runs", "artifacts") for name in self.folders(room)]
        for room in rooms:
            for entry in self.entries(*room):
                scratch = entry.name.startswith((".checkout-", ".patch-")) and self.unused(Path(entry.path))
                if entry.name.startswith(_PRUNED) or scratch:
                    self.take("leftover", Path(entry.path))

    def empty(self) -> None:
        """Delete everything that was taken."""
        for number, aside in self._aside:
            try:
                _remove(aside)
            except OSError as error:
                item = self.account[number]
                self.account[number] = replace(item, size_bytes=0, problem=str(error))
                _LOG.warning("%s %s cannot be removed: %s", item.kind, item.name, error)
        self._aside.clear()


def size_of(path: Path) -> int:
    """The bytes that removing a file or folder frees; a file with another hard link frees none."""
    try:
        seen = path.lstat()
        if not stat.S_ISDIR(seen.st_mode):
            return seen.st_size if seen.st_nlink == 1 else 0
        return sum(map(size_of, path.iterdir()))
    except FileNotFoundError:
        return 0


def _remove(path: Path) -> None:
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        if os.path.lexists(path):  # something in it went at the same time
            _remove(path)
