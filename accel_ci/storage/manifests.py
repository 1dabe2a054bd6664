"""Manifests: the small typed things that pass between assets, as JSON files that a person can read.

`builds/<revision>/revision.json`, `builds/<revision>/<variant>/<asset>.json`, and `<asset>.json` in `quality/` for what is
not partitioned. Large things are not in here: a manifest refers to them by `Artifact`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock
from pydantic import TypeAdapter

from accel_ci.errors import AccelCiError
from accel_ci.model import Build, Revision
from accel_ci.storage.atomic_file import create_whole_file, write_whole_file

T = TypeVar("T")

_BEGUN = ".begun-"

INTEGRATION_STAGES = (
    "wheel", "runtime_image", "smoke_results", "test_selection", "test_plan", "device_test_results",
)  # fmt: skip
RBE_STAGES = ("source_build", "bazel_test_results")
PIPELINES = (INTEGRATION_STAGES, RBE_STAGES)
"""The manifests of the pipelines of a build, each in the order in which they come to be. Every pipeline ends in `LEDGER`."""

LEDGER = "ledger"
STAGES = (*INTEGRATION_STAGES, *RBE_STAGES, LEDGER)
"""The manifests of a build."""


def next_stage(present: Collection[str], begun: Collection[str] = ()) -> str:
    """Where a build without a ledger stands: the stage that comes next.

    `present` are the manifests that it has, `begun` the first stages of the pipelines that have begun on it. It is the stage
    of the pipeline that has begun; the integration pipeline's where both have, or none.
    """
    started = [stages for stages in PIPELINES if stages[0] in begun or any(stage in present for stage in stages)]
    missing = [stage for stages in started or PIPELINES[:1] for stage in stages if stage not in present]
    return missing[0] if missing else LEDGER


def begun_pipelines(folder: Path) -> tuple[str, ...]:
    """The first stages of the pipelines that have begun on the build of that folder."""
    return tuple(stages[0] for stages in PIPELINES if (folder / f"{_BEGUN}{stages[0]}").exists())


def _pipeline_of(stage: str) -> tuple[str, ...]:
    return next((stages for stages in PIPELINES if stage in stages), ())


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
        write_whole_file(path, TypeAdapter(value_type or type(value)).dump_json(value, indent=1))

    def read(self, path: Path, value_type: type[T]) -> T:
        """Read a manifest. Raises `AccelCiError` when it is missing or of another shape."""
        found = self._read_if_there(path, value_type)
        if found is None:
            raise AccelCiError(f"{path} is missing; run the build from the asset that makes it")
        return found

    def _read_if_there(self, path: Path, value_type: type[T]) -> T | None:
        try:
            return TypeAdapter(value_type).validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise AccelCiError(f"{path} cannot be read: {error.strerror}; fix that and run the build again") from error
        except ValueError as error:
            raise AccelCiError(
                f"{path} is not a {value_type.__name__} of this version; run the build again ({error})"
            ) from None

    def begin(self, stage: str, build: Build) -> None:
        """Take away the manifests of a stage and of those after it in its pipeline, since they speak of an earlier run.

        A ledger that is just being written from them is waited for, and then goes too.
        """
        pipeline = _pipeline_of(stage)
        with self.ledger_lock(build):
            for later in (*pipeline[pipeline.index(stage) if pipeline else 0 :], LEDGER):
                self.path(later, build.revision, build.variant).unlink(missing_ok=True)
            if pipeline:
                self.path(stage, build.revision, build.variant).with_name(f"{_BEGUN}{pipeline[0]}").touch()

    def ledger_lock(self, build: Build) -> FileLock:
        """Held while a ledger is made of the manifests that are there: of two, the later sees all and writes last."""
        folder = self.builds / build.revision / build.variant
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / ".ledger.lock")

    def pipeline_lock_file(self, pipeline: Sequence[str], build: Build) -> Path:
        """What whichever run has a pipeline of a build keeps locked."""
        return self.builds / build.revision / build.variant / f".{pipeline[0]}.lock"

    def find(self, stage: str, build: Build, value_type: type[T]) -> T | None:
        """The manifest of a stage; None when the stage has not ended. Raises `AccelCiError` for one of another shape."""
        return self._read_if_there(self.path(stage, build.revision, build.variant), value_type)

    def revision(self, key: str) -> Revision | None:
        """The revision of that key, None when it was never resolved."""
        return self._read_if_there(self.path("revision", key), Revision)

    def add_revision(self, revision: Revision) -> Revision:
        """Keep a revision, or give back the one that was kept under its key before."""
        path = self.path("revision", revision.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            made = create_whole_file(path, TypeAdapter(Revision).dump_json(revision, indent=1))
        except OSError as error:  # a file system without hard links, say
            raise AccelCiError(f"{path} cannot be made: {error.strerror}; choose another data folder") from error
        return revision if made else self.read(path, Revision)

    def previous(self, stage: str, build: Build, value_type: type[T]) -> T | None:
        """The stage's manifest of the newest earlier build of the same variant and trigger; None when there is none."""
        revision = self.revision(build.revision)
        for other in reversed(self.list_builds()):
            before = self.revision(other.revision)
            if (
                revision is not None
                and before is not None
                and (other.variant, before.trigger) == (build.variant, revision.trigger)
                and before.created_at < revision.created_at
                and (found := self.find(stage, other, value_type)) is not None
            ):
                return found
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
