"""The artifact store: large files by content.

A file is kept once under its digest, whole or not at all: `artifacts/<sha256[:2]>/<sha256>/<name>`. Manifests hold the
`Artifact` that `put` returns and no path, so a data folder can be moved. A file's modification time is its last use: `prune`
removes only what no manifest refers to and nobody has used for a day.

Where several machines work on the same builds, the files are also in a bucket, and come from there when they are first used.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
from pathlib import Path
from typing import IO, TYPE_CHECKING

from filelock import FileLock

from accel_ci.errors import AccelCiError
from accel_ci.model import Artifact
from accel_ci.storage.atomic_file import whole_file

if TYPE_CHECKING:
    from accel_ci.storage.object_store import SharedFiles

_DIGEST = re.compile(r"[0-9a-f]{64}")


class ArtifactStore:
    """A folder of files by digest."""

    def __init__(self, root: Path, shared: SharedFiles | None = None) -> None:
        self.root = root
        self._shared = shared

    def put(self, file: Path, name: str | None = None) -> Artifact:
        """Keep a copy of `file` under `name` (its own by default)."""
        with file.open("rb") as content:
            return self._keep(content, name or file.name)

    def put_bytes(self, content: bytes, name: str) -> Artifact:
        """Keep `content` under `name`."""
        return self._keep(io.BytesIO(content), name)

    def _keep(self, content: IO[bytes], name: str) -> Artifact:
        artifact = Artifact(sha256_of(content), Path(name).name, content.tell())
        destination = self._place(artifact)
        self._keep_locally(artifact, destination, content)
        if self._shared is not None and self._shared.find(_shared_name(artifact)) is None:
            self._shared.upload(destination, _shared_name(artifact))
        return artifact

    def _keep_locally(self, artifact: Artifact, destination: Path, content: IO[bytes]) -> None:
        with self.lock():
            if destination.is_file() and destination.stat().st_size == artifact.size_bytes:
                os.utime(destination)
                return
            destination.parent.mkdir(parents=True, exist_ok=True)
            content.seek(0)
            with whole_file(destination, durable=True, mode=0o444) as copy:
                shutil.copyfileobj(content, copy, 1 << 20)

    def path(self, artifact: Artifact) -> Path:
        """The artifact's file. Raises `AccelCiError` when it is gone."""
        path = self._place(artifact)
        if not path.is_file() and not self._bring(artifact, path):
            raise AccelCiError(f"the artifact {path} is gone; run the build again")
        return path

    def _bring(self, artifact: Artifact, path: Path) -> bool:
        """Bring a file from the bucket. Return False if it is not there. Raises `AccelCiError` if it is another one."""
        if self._shared is None or (entry := self._shared.find(_shared_name(artifact))) is None:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._shared.download(entry, path)
        with path.open("rb") as content:
            if sha256_of(content) != artifact.sha256:
                path.unlink()
                raise AccelCiError(f"{_shared_name(artifact)} in the bucket has another digest; run the build again")
        return True

    def location(self, artifact: Artifact) -> Path:
        """The place of the artifact's file, even of one that is gone: for people."""
        return self._place(artifact).absolute()

    def checked_path(self, artifact: Artifact) -> Path:
        """The artifact's file, after its content was compared with its digest. Raises `AccelCiError` if it has changed."""
        path = self.path(artifact)
        with path.open("rb") as content:
            if sha256_of(content) == artifact.sha256:
                return path
        aside = path.with_name(f"{path.name}.changed")
        path.rename(aside)  # so that the same build makes it again
        raise AccelCiError(
            f"the artifact {path} has changed since it was stored; it is {aside.name} now: run the build again"
        )

    def mark_used(self, artifact: Artifact) -> None:
        """Protect the artifact from `prune` for a day. Raises `AccelCiError` when it is gone."""
        with self.lock():
            os.utime(self.path(artifact))

    def lock(self) -> FileLock:
        """The lock to hold, briefly, between checking a file of the store and using or removing it."""
        self.root.mkdir(parents=True, exist_ok=True)
        return FileLock(self.root / ".lock")

    def _place(self, artifact: Artifact) -> Path:
        if not _DIGEST.fullmatch(artifact.sha256):
            raise AccelCiError(f"{artifact.sha256!r} is no SHA-256 digest, so it names no artifact; run the build again")
        return self.root / artifact.sha256[:2] / artifact.sha256 / Path(artifact.name).name


def _shared_name(artifact: Artifact) -> str:
    return f"artifacts/{artifact.sha256}/{Path(artifact.name).name}"


def sha256_of(stream: IO[bytes]) -> str:
    """Read a stream to its end and return its digest."""
    digest = hashlib.sha256()
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()
