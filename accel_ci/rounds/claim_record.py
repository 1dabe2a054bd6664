"""The record of claims in a folder of the driver's: which worker has which batch, decided by an atomic create-if-absent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


class ClaimRecord:
    """Claims as hard links to a file with the owner's name.

    A link is made or refused in one step, and has the name from the start: a killed driver leaves no claim without owner.
    Threads do not share a record, but may have records of one folder.
    """

    def __init__(self, folder: Path) -> None:
        """Keep claims in `folder`, which exists."""
        self._folder = folder
        self._owners: set[str] = set()  # those with a file to link to
        self._known: dict[str, str] = {}

    def take(self, batch: str, owner: str) -> bool:
        """Claim a batch, whose id is fit for a file name, for an owner; False when it has one."""
        try:
            self._link(batch, owner)
        except FileExistsError:
            return False
        except FileNotFoundError:  # a test with the driver's user can delete anything
            self._restore()
            self._link(batch, owner)
        self._known[batch] = owner
        return True

    def taken(self) -> Mapping[str, str]:
        """Return the owners of batches by batch id."""
        try:
            with os.scandir(self._folder) as entries:
                fresh = [entry.name for entry in entries if entry.name[0] != "." and entry.name not in self._known]
            for name in fresh:
                self._known[name] = (self._folder / name).read_text("utf-8")
        except FileNotFoundError:
            self._restore()
        return self._known

    def _link(self, batch: str, owner: str) -> None:
        token = self._folder / f".{owner}"
        if owner not in self._owners:
            token.write_text(owner, "utf-8")
            self._owners.add(owner)
        os.link(token, self._folder / batch)

    def _restore(self) -> None:
        """Make the folder again, with the claims that this record has seen."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._owners.clear()
        for batch, owner in self._known.items():
            if not (self._folder / batch).exists():
                self._link(batch, owner)
