"""The state of faults between processes: small counters and marks in one private folder.

All access to EMU_STATE_DIR belongs here. The folder may be in a temporary directory that everybody can write to, so it
is opened only if it is a real folder of this user that nobody else can write to, and all files are accessed relative to
the opened folder.
"""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VARIABLE = "EMU_STATE_DIR"


class StateError(RuntimeError):
    """The folder for the state of faults cannot be trusted or used."""


def directory() -> Path:
    """Return the folder for the state of faults."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path(tempfile.gettempdir()) / f"torch_emu-{os.getuid()}"


@contextmanager
def _opened() -> Iterator[int]:
    path = directory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise StateError(f"{path} cannot hold the state of faults: {error.strerror}; set {VARIABLE}") from error
    try:
        facts = os.fstat(handle)
        if facts.st_uid != os.getuid():
            raise StateError(f"{path} belongs to another user; set {VARIABLE} to your own folder")
        if stat.S_IMODE(facts.st_mode) & 0o022:
            raise StateError(f"{path} can be written to by other users; chmod it to 0700 or set {VARIABLE}")
        yield handle
    finally:
        os.close(handle)


def prepare() -> None:
    """Make the folder if needed and raise StateError if it cannot be trusted."""
    with _opened():
        pass


def count(name: str) -> int:
    """Increment a counter that all processes share and return its new value."""
    with _opened() as folder:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(f"{name}.count", flags, 0o600, dir_fd=folder)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            value = int(os.pread(handle, 32, 0) or b"0") + 1
            # A single write of a number that never gets shorter: a process killed here leaves a complete number behind.
            os.pwrite(handle, b"%d" % value, 0)
            return value
        finally:
            os.close(handle)


def mark(name: str) -> None:
    """Set a mark that stays until its file is removed."""
    with _opened() as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(f"{name}.mark", flags, 0o600, dir_fd=folder))


def marked(name: str) -> bool:
    """Return whether a mark was set, by this or any earlier process."""
    with _opened() as folder:
        try:
            os.stat(f"{name}.mark", dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True
