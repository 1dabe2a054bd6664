"""The user that code of the sources runs as where this process is root, so that it reads nothing of ours."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class OwnUser:
    """A user and a group by their numbers."""

    uid: int
    gid: int

    @classmethod
    def named(cls, user: str | None) -> OwnUser | None:
        """Read `uid` or `uid:gid`; None where no user is set, or this process is that user already."""
        if user is None:
            return None
        uid, _, gid = user.partition(":")
        own = cls(int(uid), int(gid or uid))
        return None if (own.uid, own.gid) == (os.getuid(), os.getgid()) else own

    def __str__(self) -> str:
        return f"{self.uid}:{self.gid}"

    def give(self, *places: Path) -> None:
        """Make the user the owner of files and folders, and of all that is in them.

        Links are given, not followed, also where the user puts them in the place of folders meanwhile.
        """
        for place in places:
            os.chown(place, self.uid, self.gid, follow_symlinks=False)
            for _, folders, files, opened in os.fwalk(place) if place.is_dir() else ():
                for name in (*folders, *files):
                    os.chown(name, self.uid, self.gid, dir_fd=opened, follow_symlinks=False)
