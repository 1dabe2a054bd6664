"""Take secrets out of files that other programs have written, such as the raw output of workers."""

from __future__ import annotations

import os
from pathlib import Path

from accel_ci.redaction import OF_THIS_PROCESS
from accel_ci.storage.atomic_file import write_whole_file

_AT_MOST_BYTES = 256 << 20
"""A larger file is cut to its beginning where it would have to be read."""


def redact_folder(folder: Path) -> list[Path]:
    """Redact the regular files below a folder that hold a secret, and return them. Links are not followed."""
    changed = []
    for parent, _, names in os.walk(folder) if OF_THIS_PROCESS.secrets else ():
        for path in (Path(parent, name) for name in names):
            if path.is_symlink() or not path.is_file():
                continue
            with path.open("rb") as file:
                content = file.read(_AT_MOST_BYTES)
            if (clean := OF_THIS_PROCESS.content(content)) != content:
                write_whole_file(path, clean)
                changed.append(path)
    return changed
