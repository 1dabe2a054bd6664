"""Manifests: the small typed things that pass between assets, as JSON files that a person can read.

`builds/<revision>/revision.json`, `builds/<revision>/<variant>/<asset>.json`, and `<asset>.json` in `quality/` for what is
not partitioned. Large things are not in here: a manifest refers to them by `Artifact`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from accel_ci.errors import AccelCiError
from accel_ci.model import Build, Revision

T = TypeVar("T")

STAGES = (
    "wheel", "runtime_image", "smoke_results", "test_selection", "test_plan", "device_test_results", "ledger",
)  # fmt: skip
"""The manifests of a build, in the order in which they come to be."""


class ManifestStore:
    """The manifests below a data folder."""

    def __init__(self, home: Path) -> None:
        self.builds = home / "builds"
        self.unpartitioned = home / "quality"

    def path(self, asset: str, revision: str | None = None, variant: str | None = None) -> Path:
        """Where the manifest of an asset lies; without a revision, of one that is not partitioned."""
        folder = self.unpartitioned if revision is None else self.builds / revision
        return (folder / variant if variant else folder) / f"{asset}.json"

    def write(self, path: Path, value: Any, value_type: Any = None) -> None:
        """Write a manifest whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_bytes(TypeAdapter(value_type or type(value)).dump_json(value, indent=1))
        scratch.replace(path)

    def read(self, path: Path, value_type: type[T]) -> T:
        """Read a manifest. Raises `AccelCiError` when it is missing or of another shape."""
        try:
            return TypeAdapter(value_type).validate_json(path.read_bytes())
        except OSError:
            raise AccelCiError(f"{path} is missing; run the build from the asset that makes it") from None
        except ValueError as error:
            raise AccelCiError(
                f"{path} is not a {value_type.__name__} of this version; run the build again ({error})"
            ) from None

    def begin(self, stage: str, build: Build) -> None:
        """Take away the manifests of a stage and of those after it, since they speak of an earlier run."""
        for later in STAGES[STAGES.index(stage) :]:
            self.path(later, build.revision, build.variant).unlink(missing_ok=True)

    def revision(self, key: str) -> Revision | None:
        """The revision of that key, None when it was never resolved."""
        path = self.path("revision", key)
        return self.read(path, Revision) if path.is_file() else None

    def previous(self, stage: str, build: Build, value_type: type[T]) -> T | None:
        """The stage's manifest of the newest earlier build of the same variant and trigger; None when there is none."""
        revision = self.revision(build.revision)
        for other in reversed(self.list_builds()):
            before, path = self.revision(other.revision), self.path(stage, other.revision, other.variant)
            if (
                revision is not None
                and before is not None
                and (other.variant, before.trigger) == (build.variant, revision.trigger)
                and before.created_at < revision.created_at
                and path.is_file()
            ):
                return self.read(path, value_type)
        return None

    def list_builds(self) -> list[Build]:
        """Every build that has a folder, oldest revision first."""
        revisions = [r for f in self.builds.glob("*/revision.json") if (r := self.revision(f.parent.name)) is not None]
        return [
            Build(revision.key, folder.name)
            for revision in sorted(revisions, key=lambda revision: revision.created_at)
            for folder in sorted((self.builds / revision.key).iterdir())
            if folder.is_dir()
        ]
