"""Files that are there whole or not at all, however many write them at once and wherever one of them stops."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends well; of several writers the last one's stays."""
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with scratch.open("xb") as file:
            yield file
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def create_whole_file(path: Path, content: bytes) -> bool:
    """Make a file where there is none; of several writers the first one's stays, and the others are told False."""
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        scratch.write_bytes(content)
        path.hardlink_to(scratch)
    except FileExistsError:
        return False
    finally:
        scratch.unlink(missing_ok=True)
    return True
