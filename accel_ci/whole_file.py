"""A file that is there whole or not at all, however many write it at once and wherever one of them stops."""

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
