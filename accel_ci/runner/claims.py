"""Claims: which worker runs a batch, decided by an atomic create-if-absent.

Here belong the ways to claim, behind `Claims`; which batch to try is `choice.py`'s business.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Claims(Protocol):
    """A store that lets one of many racing owners have a batch."""

    def take(self, batch: str) -> bool:
        """Claim a batch; False when somebody has it."""

    def taken(self) -> Mapping[str, str]:
        """Who has which batch, batch id to owner, as far as is known now."""


class FolderClaims:
    """Claims as files of a folder that all workers share.

    A claim is a hard link to a file that holds its owner's name. Like `O_CREAT | O_EXCL` the link is made or refused as
    one step, and unlike it the claim has its owner's name from its first moment: a worker that is killed at any point
    leaves no claim of nobody.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        """Claim in `folder`, which exists, for `owner`."""
        self._folder = folder
        self._token = folder / f".{owner}"
        self._token.write_text(owner, "utf-8")
        self._known: dict[str, str] = {}

    def take(self, batch: str) -> bool:
        """Claim a batch; False when somebody has it."""
        try:
            os.link(self._token, self._folder / batch)
        except FileExistsError:
            return False
        return True

    def taken(self) -> Mapping[str, str]:
        """Who has which batch, batch id to owner."""
        with os.scandir(self._folder) as entries:
            fresh = [entry.name for entry in entries if entry.name[0] != "." and entry.name not in self._known]
        for name in fresh:
            self._known[name] = (self._folder / name).read_text("utf-8")
        return self._known
