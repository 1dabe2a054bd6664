"""The artifact store: large things by content.

A file is kept once under its digest, whole or not at all: `artifacts/<sha256[:2]>/<sha256>/<name>`. Manifests hold the
`Artifact` that `put` gives back, never a path of their own making.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from accel_ci.errors import AccelCiError
from accel_ci.model import Artifact
from accel_ci.storage.atomic_file import whole_file


class ArtifactStore:
    """A folder of files by digest."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, file: Path, name: str | None = None) -> Artifact:
        """Keep a copy of `file` under `name` (its own by default)."""
        digest = _sha256(file)
        destination = self.root / digest[:2] / digest / Path(name or file.name).name
        if not destination.is_file():
            destination.parent.mkdir(parents=True, exist_ok=True)
            with file.open("rb") as content, whole_file(destination) as copy:
                shutil.copyfileobj(content, copy, 1 << 20)
        return Artifact(destination.as_uri(), digest, destination.stat().st_size)

    def put_bytes(self, content: bytes, name: str) -> Artifact:
        """Keep `content` under `name`."""
        with tempfile.TemporaryDirectory(prefix="accel-ci-") as scratch:
            file = Path(scratch) / Path(name).name
            file.write_bytes(content)
            return self.put(file)

    def path(self, artifact: Artifact) -> Path:
        """Where the artifact lies. Raises `AccelCiError` when it is gone."""
        path = Path(unquote(urlsplit(artifact.uri).path))
        if not path.is_file():
            raise AccelCiError(f"the artifact {path} is gone; run the build again")
        return path


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
