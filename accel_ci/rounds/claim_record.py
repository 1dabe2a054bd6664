"""The driver's record of claims: which worker has which batch. A folder keeps it for a driver that starts after a kill.

The driver grants claims and is the only one to write them, so what it remembers is right. A test with the driver's user can
write, delete or replace anything in the folder: it is read when the record is opened, and never again.
"""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

from accel_ci.storage.untrusted_file import UntrustedFileError, read_untrusted

_MOST_OWNER_BYTES = 4096
_NOBODY = "?"  # the owner in a file that cannot be read
_FRESH = ".fresh"


class ClaimRecord:
    """Claims as files with the owner's name. Threads share a record."""

    def __init__(self, folder: Path) -> None:
        """Open the record in `folder`, which need not exist."""
        self._folder = folder
        self._lock = threading.RLock()
        self._owners = _read(folder)

    def take(self, batch: str, owner: str) -> bool:
        """Claim a batch, whose id is fit for a file name, for an owner; False when it has one. Raises `OSError`."""
        with self._lock:
            if batch in self._owners:
                return False
            self._keep(batch, owner)
            return True

    def owner(self, batch: str) -> str | None:
        """Return the owner of a batch."""
        return self._owners.get(batch)

    def taken(self) -> dict[str, str]:
        """Return the owners of batches by batch id."""
        with self._lock:
            return dict(self._owners)

    def _keep(self, batch: str, owner: str) -> None:
        try:
            _write(self._folder, batch, owner)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):  # a test can delete and replace files and folders
            self._restore()
            _write(self._folder, batch, owner)
        self._owners[batch] = owner

    def _restore(self) -> None:
        """Make the folder anew, with all claims."""
        if self._folder.is_dir() and not self._folder.is_symlink():
            shutil.rmtree(self._folder)
        self._folder.unlink(missing_ok=True)
        self._folder.mkdir(parents=True)
        for batch, owner in self._owners.items():
            _write(self._folder, batch, owner)


def _write(folder: Path, batch: str, owner: str) -> None:
    """Write a claim in one step, so that a killed driver leaves none without its owner; follow no link."""
    within = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with suppress(FileNotFoundError):
            os.unlink(_FRESH, dir_fd=within)
        with os.fdopen(os.open(_FRESH, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=within), "wb") as file:
            file.write(owner.encode())
        os.rename(_FRESH, batch, src_dir_fd=within, dst_dir_fd=within)
    finally:
        os.close(within)


def _read(folder: Path) -> dict[str, str]:
    owners: dict[str, str] = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for name in sorted(entry.name for entry in entries if not entry.name.startswith(".")):
            try:
                owners[name] = read_untrusted(folder, name, _MOST_OWNER_BYTES).decode("utf-8", "replace")
            except UntrustedFileError:
                owners[name] = _NOBODY
    return owners
