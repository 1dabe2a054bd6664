"""The version of the layout of a project's data, so that no release reads or writes what it does not understand.

It is in the file `layout.json` of the data folder, shared with it: one number for manifests, artifacts, attempts and what
the HUD keeps. A release that changes the layout raises `LAYOUT` and adds a step to `UPGRADES`. Data without the file are of
version 1. What makes them new is `accel-ci upgrade`; caches and indexes have versions in themselves and are made anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from accel_ci.errors import AccelCiError
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.shared_folder import FolderShare

LAYOUT = 1
"""The version that this release reads and writes."""

Upgrades = Mapping[int, Callable[[Path, FolderShare], None]]
"""By the version that it begins with, what makes the data folder, and what it shares, that of the next version."""

UPGRADES: Upgrades = MappingProxyType({})

_DOCUMENTATION = "docs/upgrade.md"


class LayoutError(AccelCiError):
    """The data are of another version than this release knows."""


class LayoutFile:
    """The file `layout.json` of a data folder."""

    def __init__(self, home: Path, share: FolderShare, known: int = LAYOUT, upgrades: Upgrades = UPGRADES) -> None:
        """`known` is the version that may be used, and `upgrades` lead to it."""
        self._path, self._home, self._share, self._known, self._upgrades = home / "layout.json", home, share, known, upgrades
        self._checked = False

    def check(self) -> None:
        """Look once whether the data may be used. Raises `LayoutError`."""
        if self._checked:
            return
        version = self.version()
        if version > self._known:
            raise LayoutError(
                f"{self._share.location(self._path)}: a newer release has changed the data (version {version}; this one "
                f"knows {self._known}): use that release, or restore the backup from before ({_DOCUMENTATION})"
            )
        if version < self._known:
            raise LayoutError(
                f"{self._share.location(self._path)}: the data are of an older release (version {version}; this one uses "
                f"{self._known}): make a backup, then run `accel-ci upgrade` ({_DOCUMENTATION})"
            )
        self._checked = True

    def note(self) -> None:
        """Write the file where there is none, before the first build. Raises `LayoutError` if the data may not be used."""
        self.check()
        if not self._path.is_file():
            self._write(self._known)

    def upgrade(self, say: Callable[[str], None]) -> None:
        """Make the data those of this release. Steps that are done are noted, so that one that fails is done again."""
        while (version := self.version()) < self._known:
            say(f"data: from version {version} to {version + 1}")
            self._upgrades[version](self._home, self._share)
            self._write(version + 1)
        self.note()

    def version(self) -> int:
        """Return the version of the data. Raises `LayoutError` if the file is damaged."""
        self._share.bring_file(self._path)
        try:
            return int(json.loads(self._path.read_bytes())["version"])
        except FileNotFoundError:
            return 1
        except (ValueError, LookupError, TypeError) as error:
            place = self._share.location(self._path)
            raise LayoutError(f'{place} is damaged; write {{"version": {self._known}}} if the data are those') from error

    def _write(self, version: int) -> None:
        content = json.dumps({"version": version}).encode() + b"\n"
        self._share.send(self._path, content)
        self._home.mkdir(parents=True, exist_ok=True)
        write_whole_file(self._path, content, durable=True)
