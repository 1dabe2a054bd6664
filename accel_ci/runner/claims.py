"""Claims: which worker runs a batch, decided by an atomic create-if-absent. `choice.py` decides which batch to try."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Claims(Protocol):
    """A store of claims, in which one of many racing owners gets a batch."""

    def take(self, batch: str) -> bool:
        """Claim a batch; False when it has an owner."""

    def taken(self) -> Mapping[str, str]:
        """The owners of batches by batch id, as far as they are known."""


class FolderClaims:
    """Claims as hard links, in a folder that all workers share, to a file with the owner's name.

    A link is made or refused in one step, and has the name from the start: a killed worker leaves no claim without owner.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        """Claim in `folder`, which exists, for `owner`."""
        self._folder, self._token = folder, folder / f".{owner}"
        self._token.write_text(owner, "utf-8")
        self._known: dict[str, str] = {}

    def take(self, batch: str) -> bool:
        """Claim a batch; False when it has an owner."""
        try:
            os.link(self._token, self._folder / batch)
        except FileExistsError:
            return False
        return True

    def taken(self) -> Mapping[str, str]:
        """Return the owners of batches by batch id."""
        with os.scandir(self._folder) as entries:
            fresh = [entry.name for entry in entries if entry.name[0] != "." and entry.name not in self._known]
        for name in fresh:
            self._known[name] = (self._folder / name).read_text("utf-8")
        return self._known
