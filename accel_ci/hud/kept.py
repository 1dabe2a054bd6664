"""The facts that the HUD keeps of builds between two writes, in a file beside its folder.

It is a cache: an entry counts only while the manifests of its build are the files that it was made from. A file that is
missing, damaged or of another version is made anew.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from accel_ci.hud.changes import ChangeCounts
from accel_ci.hud.summary import BuildSummary
from accel_ci.storage.atomic_file import write_whole_file

_LOG = logging.getLogger(__name__)

_NAME = "builds.json"
_VERSION = 1
"""Another number when a kept value means something else."""


@dataclass(frozen=True)
class KeptBuild:
    """The facts of a build that was made from manifests with this `signature`.

    `page` is the stamp of what its page was made from, empty while it has none. `changes` and `blamed`, the number of
    failures by kind, and the ids of its `incidents` were found when the page was made.
    """

    signature: str
    summary: BuildSummary
    page: str = ""
    changes: ChangeCounts | None = None
    blamed: Mapping[str, int] = field(default_factory=dict)
    incidents: tuple[str, ...] = ()


@dataclass(frozen=True)
class _File:
    version: int
    builds: dict[str, KeptBuild]


def read_kept(state: Path) -> dict[str, KeptBuild]:
    """Read the facts by the names of builds."""
    try:
        found = msgspec.json.decode((state / _NAME).read_bytes(), type=_File)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        _LOG.warning("%s is made anew: %s", state / _NAME, error)
        return {}
    return found.builds if found.version == _VERSION else {}


def keep(state: Path, builds: Mapping[str, KeptBuild]) -> None:
    """Write the facts."""
    state.mkdir(parents=True, exist_ok=True)
    write_whole_file(state / _NAME, msgspec.json.encode(_File(_VERSION, dict(builds))))


def signature_of(folder: Path, *files: Path) -> str:
    """Sign the state of the files of a folder, and of other files: their names, sizes and times."""
    seen = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(".lock"):
                found = entry.stat(follow_symlinks=False)
                seen.append((entry.name, found.st_mtime_ns, found.st_size))
    for file in files:
        if file.exists():
            found = file.stat()
            seen.append((file.name, found.st_mtime_ns, found.st_size))
    return hashlib.sha256(repr(sorted(seen)).encode()).hexdigest()[:16]
