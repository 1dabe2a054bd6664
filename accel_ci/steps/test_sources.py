"""The folder that a build's tests run in: the backend's checkout, without its packages, and with PyTorch's own tests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from accel_ci.config.settings import UPSTREAM_TESTS, Project, Suite, Variant
from accel_ci.model import Revision, RuntimeImage
from accel_ci.pool.sessions import files_of_pytorch_suites
from accel_ci.source.revision import checkout_backend
from accel_ci.source.tests_tree import tests_tree
from accel_ci.source.upstream_tree import UpstreamTree, commit_of_tests, upstream_tree
from accel_ci.wheels.installed import top_level_names


@dataclass(frozen=True)
class TestSources:
    """The folder that the ids of tests are relative to, and PyTorch's tests in it, if a suite needs them."""

    __test__ = False

    folder: Path
    upstream: UpstreamTree | None


def sources_for_tests(
    project: Project,
    revision: Revision,
    variant: Variant,
    image: RuntimeImage,
    wheels: Sequence[Path],
    suites: Collection[Suite],
) -> TestSources:
    """Make the folder for the suites of a build from the files of its wheels. Raises `SourceError`."""
    settings = project.settings
    sources = checkout_backend(project, revision.backend)
    own = [path for suite in settings.suites.values() if suite.source == "backend" for path in suite.paths]
    tree = None
    if any(suite.source == "upstream" for suite in suites):
        sha = commit_of_tests(settings.upstream, variant, image, revision)
        tree = upstream_tree(settings.upstream, sha, image, project.root, project.home / "sources")
    files = files_of_pytorch_suites(settings.device, suites, sources)
    folders = {UPSTREAM_TESTS: tree.folder} if tree is not None else {}
    return TestSources(tests_tree(sources, top_level_names(wheels), own, folders, files), tree)
