"""Check what was published: install it from the index in a clean environment, and run the smoke suites there on the pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from accel_ci.config.release_settings import Index
from accel_ci.errors import BuildError
from accel_ci.images.published_image import image_from_index
from accel_ci.ledger.status import smoke_shortcoming
from accel_ci.model import Build, Revision, RuntimeImage, SoftwareStack, Wheel
from accel_ci.pipelines import STACK
from accel_ci.pool.choose_pool import pool_for, worker_spec_for
from accel_ci.progress import Step
from accel_ci.release.index import index_alone, install_from, pins_of
from accel_ci.results.questions import failed_attempts
from accel_ci.results.store import ResultsStore
from accel_ci.scope.rule_files import with_rule_files
from accel_ci.stack.build import bring_stack
from accel_ci.steps.device_tests import retire_rounds, run_smoke_stage
from accel_ci.steps.test_sources import sources_for_tests
from accel_ci.storage.scratch_folder import scratch_folder
from accel_ci.wheels.package_source import packages_of
from accel_ci.workspace import Workspace


def verify(
    workspace: Workspace, build: Build, revision: Revision, wheel: Wheel, image: RuntimeImage, index: Index, step: Step
) -> str:
    """Install a build's wheels from an index and run its smoke suites there; return what was found, in words.

    The suites run as those of builds do: on a healthy card of the pool. Their results are not stored. Workers in an image
    that the pool names have nothing of the index: for these, the wheels are installed and imported here only. Raises
    `BuildError` if they cannot be installed, or the suites do not pass, and `PoolError`.
    """
    project = workspace.project
    settings = project.settings
    suites = settings.suites_of(revision.trigger, "smoke", revision.suites, build.variant)
    stack = workspace.manifests.find(STACK, build, SoftwareStack)
    if stack is not None:
        bring_stack(stack, workspace.artifacts)
    with scratch_folder("release") as scratch:
        scratch.chmod(0o711)
        with _installed(workspace, build, wheel, image, index, scratch) as own:
            if own is None or not suites:
                return f"installed from {index.simple} and imported"
            wheels = [workspace.artifacts.path(each) for each in wheel.wheels]
            variant = settings.variant(build.variant)
            sources = sources_for_tests(project, revision, variant, own, wheels, list(suites.values())).folder
            spec = worker_spec_for(settings, own, sources, revision.tested_as)
            context = workspace.stage_context(revision, build.variant, "verify")
            results = ResultsStore(scratch / "results")
            context = replace(context, content=f"{index.simple} {scratch.name}", results=results)
            found = run_smoke_stage(settings, with_rule_files(suites, project.root), spec, context, step)
            retire_rounds(settings, context.folder)
            failures = failed_attempts(results, build, found.suites)
    expected = sum(each.expected for each in found.selections)
    if (shortcoming := smoke_shortcoming(found.counts, expected, len(failures))) is not None:
        lines = "".join(f"\n{each.test}: {each.outcome}: {each.message}" for each in failures)
        raise BuildError(f"{', '.join(suites)} does not pass with what {index.simple} has: {shortcoming}{lines}")
    return f"installed from {index.simple}, {found.counts.get('passed', 0)} tests of {', '.join(suites)} passed"


@contextmanager
def _installed(
    workspace: Workspace, build: Build, wheel: Wheel, image: RuntimeImage, index: Index, folder: Path
) -> Iterator[RuntimeImage | None]:
    """Install the wheels where the pool's workers can use them; None if its workers use something else.

    Those on this machine get a clean virtual environment, and those in the build's image one that is made anew from it.
    """
    project = workspace.project
    settings, variant = project.settings, project.settings.variant(build.variant)
    used, made, section = pool_for(settings).worker_spec(image, folder).image, image.container("runtime"), None
    if made is not None and used == made.reference:
        section = settings.image_of(variant)
    if section is not None:
        packages = index_alone(index, packages_of(settings, variant, in_container=True))
        name, limit = settings.backend.import_name, settings.limits.install_seconds
        pins = list(pins_of(wheel).values())
        with image_from_index(section, image, pins, name, packages, limit) as own:
            yield own
        return
    python = install_from(index, project, variant, wheel, image, folder)
    yield replace(image, kind="venv", python=str(python), containers=()) if used is None else None
