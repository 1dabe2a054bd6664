"""The stores and folders below a project's data folder: the only module that knows where they are.

Heavy imports wait until a store is asked for, so that commands which read manifests start quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from accel_ci.config.settings import Project
from accel_ci.model import Build, Revision, trigger_of_key
from accel_ci.pipelines import PIPELINES, REVISION, Pipeline
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.dev_file import DevAddresses, read_addresses
from accel_ci.storage.manifests import ManifestStore

if TYPE_CHECKING:
    from accel_ci.rbe.bazel import BazelContext
    from accel_ci.results.store import ResultsStore
    from accel_ci.scope.each_file import CollectionCache
    from accel_ci.steps.device_tests import StageContext
    from accel_ci.storage.bucket import BucketStore


@dataclass(frozen=True)
class Workspace:
    """A project with its pipelines, and where they work. A `patient` one, for runs, waits for a bucket that is away."""

    project: Project
    pipelines: tuple[Pipeline, ...] = PIPELINES
    patient: bool = False

    def __post_init__(self) -> None:
        """Give the pipelines the stages that the project's configuration asks for."""
        configured = tuple(pipeline.as_configured(self.project.settings) for pipeline in self.pipelines)
        object.__setattr__(self, "pipelines", configured)

    @cached_property
    def artifacts(self) -> ArtifactStore:
        """Large things by digest."""
        return ArtifactStore(self.project.home / "artifacts", self.bucket)

    @cached_property
    def manifests(self) -> ManifestStore:
        """The manifests that pass between assets."""
        if self.bucket is None:
            return ManifestStore(self.project.home, self.pipelines)
        from accel_ci.storage.shared_folder import SharedFolder

        return ManifestStore(self.project.home, self.pipelines, SharedFolder(self.project.home, self.bucket))

    @cached_property
    def bucket(self) -> BucketStore | None:
        """The bucket through which machines share the data folder; None if this one has it to itself."""
        store = self.project.settings.store
        if store is None:
            return None
        from accel_ci.storage.bucket import open_bucket
        from accel_ci.storage.s3 import environment_keys

        place = store.bucket, store.prefix, self.project.home / "cache" / "store", store.endpoint
        return open_bucket(*place, environment_keys(), store.region, store.patience_seconds if self.patient else 0.0)

    @cached_property
    def results(self) -> ResultsStore:
        """Every attempt."""
        from accel_ci.results.store import open_results

        return open_results(self.project, patient=self.patient)

    @property
    def trusted_results(self) -> ResultsStore:
        """The attempts of trusted builds: what a stranger's code reports must decide nothing for others."""
        return self.results.of_builds(cache(self.is_trusted_build))

    def is_trusted_build(self, build: Build) -> bool:
        """Return whether the code of a build is trusted (see `is_trusted`).

        Without its revision, the key tells: a person can have built any commit by hand.
        """
        from accel_ci.source.revision import confirmed_key, is_trusted

        trigger = trigger_of_key(confirmed_key(build.revision) or build.revision)
        if trigger == "pr":
            return False
        revision = self.manifests.read_history(self.manifests.path(REVISION, build.revision), Revision)
        return trigger != "manual" if revision is None else is_trusted(self.project.settings, revision)

    @property
    def wheel_cache(self) -> Path:
        """The wheels by their inputs."""
        return self.project.home / "cache" / "wheels"

    def collections(self, revision: Revision, content: str) -> CollectionCache:
        """Return the collections that builds of a revision share; `content` names its image and the backend's sources.

        Pull requests have a folder of their own: what they keep there is what their code says.
        """
        from accel_ci.scope.each_file import CollectionCache
        from accel_ci.source.revision import is_trusted

        name = "collections" if is_trusted(self.project.settings, revision) else "collections-of-pulls"
        return CollectionCache(self.project.home / "cache" / name, content)

    @property
    def stack_cache(self) -> Path:
        """The builds of the software stack's components by their inputs."""
        return self.project.home / "cache" / "stack"

    @property
    def images(self) -> Path:
        """Runtime images, by digest."""
        return self.project.home / "images"

    @property
    def hud(self) -> Path:
        """The static site."""
        return self.project.home / "hud"

    @property
    def dev_file(self) -> Path:
        """The addresses and the lock of `accel-ci dev`."""
        return self.project.home / "dev.json"

    @property
    def addresses(self) -> DevAddresses | None:
        """The addresses of the Dagster UI and the HUD: as configured, else of `accel-ci dev`; None if nobody serves them."""
        if (own := self.project.settings.addresses) is not None:
            return DevAddresses(own.ui.rstrip("/"), f"{own.hud.rstrip('/')}/")
        return read_addresses(self.dev_file)

    @property
    def cards_lock(self) -> Path:
        """The lock of a run that uses the local pool's cards."""
        return self.project.home / "cards.lock"

    @cached_property
    def runner(self) -> Path:
        """The runner as one file, made when first asked for."""
        from accel_ci.pool.runner_package import build_runner

        return build_runner(self.project.home / "cache" / "runner.pyz")

    def bazel_context(self, build: Build) -> BazelContext:
        """Return where Bazel works for a build."""
        from accel_ci.rbe.bazel import BazelContext

        return BazelContext(self.project.home / "rbe" / build.variant, self.run_folder(build) / "bazel")

    def stage_context(self, revision: Revision, variant: str, stage: str, run: str = "") -> StageContext:
        """Return where a stage of a build runs its tests; `run` is the id of the Dagster run that asks for it."""
        from accel_ci.steps.device_tests import StageContext

        build, day, lock = Build(revision.key, variant), revision.created_at.date(), self.cards_lock
        folder = self.run_folder(build) / stage
        return StageContext(build, day, self.runner, folder, lock, self.artifacts, self.results, run)

    def run_folder(self, build: Build) -> Path:
        """The folder of a build's unfinished work."""
        return self.project.home / "runs" / build.revision / build.variant
