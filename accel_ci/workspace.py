"""The places that assets work in: one object made from the project and handed to every group of assets."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from accel_ci.config.settings import Project
from accel_ci.model import Build, Revision
from accel_ci.pool.runner_package import build_runner
from accel_ci.rbe.bazel import BazelContext
from accel_ci.results.open import open_results
from accel_ci.results.store import ResultsStore
from accel_ci.steps.device_tests import StageContext
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.manifests import ManifestStore


@dataclass(frozen=True)
class Workspace:
    """The stores and folders below a project's data folder."""

    project: Project

    @cached_property
    def artifacts(self) -> ArtifactStore:
        """Large things by digest."""
        return ArtifactStore(self.project.home / "artifacts")

    @cached_property
    def manifests(self) -> ManifestStore:
        """What passes between assets."""
        return ManifestStore(self.project.home)

    @cached_property
    def results(self) -> ResultsStore:
        """Every attempt."""
        return open_results(self.project)

    @property
    def wheel_cache(self) -> Path:
        """Which inputs gave which wheel."""
        return self.project.home / "cache" / "wheels"

    @property
    def images(self) -> Path:
        """Runtime images, by digest."""
        return self.project.home / "images"

    @property
    def hud(self) -> Path:
        """The static site."""
        return self.project.home / "hud"

    @cached_property
    def runner(self) -> Path:
        """The runner as one file, made when first asked for."""
        return build_runner(self.project.home / "cache" / "runner.pyz")

    def bazel_context(self, build: Build) -> BazelContext:
        """Where Bazel works for a build."""
        results = self.project.home / "runs" / build.revision / build.variant / "bazel"
        return BazelContext(self.project.home / "rbe" / build.variant, results)

    def stage_context(self, revision: Revision, variant: str, stage: str, run: str = "") -> StageContext:
        """Where a stage of a build runs its tests, asked for by the Dagster run of that id."""
        build = Build(revision.key, variant)
        folder = self.project.home / "runs" / build.revision / build.variant / stage
        lock, day = self.project.home / "cards.lock", revision.created_at.date()
        return StageContext(build, day, self.runner, folder, lock, self.artifacts, self.results, run)
