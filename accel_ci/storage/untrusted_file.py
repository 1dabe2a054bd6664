"""Read files that code under test may have put there: never through a link, never a pipe, never without a limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


class UntrustedFileError(Exception):
    """A file is not what it should be; the message says what it is."""


def open_untrusted(folder: Path, name: str) -> BinaryIO:
    """Open a regular file directly below a folder to read it. Raises `UntrustedFileError`, `FileNotFoundError`."""
    within = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=within)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UntrustedFileError(f"{name} cannot be read: {error.strerror}") from error
    finally:
        os.close(within)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise UntrustedFileError(f"{name} is no regular file")
    return os.fdopen(found, "rb")


def read_untrusted(folder: Path, name: str, limit_bytes: int) -> bytes:
    """Read a regular file directly below a folder. Raises `UntrustedFileError`, `FileNotFoundError`."""
    with open_untrusted(folder, name) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise UntrustedFileError(f"{name} is larger than {limit_bytes >> 20} MiB")
    return content
