"""Many small shared files in one object, so that a machine with an empty data folder does not ask for each of them.

A pack is a cache beside the files, which stay the truth: a machine lists these, and takes from a pack only what has the ETag
that the list tells. So a pack is never wrong, only of less use the more of its files have changed or gone. Whoever has had
to bring many files one by one packs them for the next; a pack that is mostly out of use is deleted.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.scratch_folder import scratch_folder

if TYPE_CHECKING:
    from accel_ci.storage.object_store import Entry, SharedFiles

FOLDER = "packs"
"""The folder of the packs, beside those of the files."""

MANY = 1000
"""From so many missing files on, packs are worth their requests: a listing has as many."""

PACKED = 10_000
"""The number of files in a pack, at most."""

LARGEST = 1 << 20
"""The bytes of a file that is packed, at most: larger ones are few."""

_LOG = logging.getLogger(__name__)


def bring_from_packs(
    objects: SharedFiles, listed: Mapping[str, Entry], wanted: Sequence[Entry], place: Callable[[Entry], Path]
) -> list[Entry]:
    """Write those of the wanted files that packs have, and return the others. `listed` has all files that there are."""
    left = {entry.name: entry for entry in wanted}
    for pack in objects.list_below(FOLDER):
        if not left:
            break
        found = of_use = 0
        with suppress(FileNotFoundError), scratch_folder("pack") as scratch:  # another machine may have deleted it
            objects.download(pack, scratch / "pack")
            for name, content in _files_in(scratch / "pack"):
                found += 1
                entry = listed.get(name)
                if entry is None or hashlib.md5(content, usedforsecurity=False).hexdigest() != entry.version:
                    continue
                of_use += 1
                if name in left:
                    path = place(left.pop(name))
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_whole_file(path, content)
            if of_use < found / 2 or not found:
                _LOG.info("%s is mostly out of use and goes: %d of %d files", pack.name, of_use, found)
                objects.delete(pack.name)
    return list(left.values())


def pack_files(objects: SharedFiles, entries: Sequence[Entry], place: Callable[[Entry], Path]) -> None:
    """Pack these files, which are here. One that is of another version by now is left out, and so is a large one."""
    small = sorted((entry for entry in entries if entry.size <= LARGEST), key=lambda entry: entry.name)
    for start in range(0, len(small), PACKED):
        packed = io.BytesIO()
        file = gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0)
        with file, tarfile.open(fileobj=file, mode="w") as tar:
            for entry in small[start : start + PACKED]:
                with suppress(FileNotFoundError):
                    content = place(entry).read_bytes()
                    if hashlib.md5(content, usedforsecurity=False).hexdigest() == entry.version:
                        info = tarfile.TarInfo(entry.name)
                        info.size = len(content)
                        tar.addfile(info, io.BytesIO(content))
        content = packed.getvalue()
        objects.create(f"{FOLDER}/{hashlib.sha256(content).hexdigest()}.tar.gz", content)


def _files_in(pack: Path) -> Iterator[tuple[str, bytes]]:
    """The names and contents of a pack's files; nothing more from where it is damaged."""
    try:
        with tarfile.open(pack, "r:gz") as tar:
            for member in tar:
                if member.isreg() and member.size <= LARGEST and (file := tar.extractfile(member)) is not None:
                    yield member.name, file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        _LOG.warning("a pack is damaged: %s", error)
