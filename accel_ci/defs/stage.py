"""What surrounds the work of every asset of a build: having it alone, announcing it, and saying clearly why it stopped."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timezone

import dagster as dg

from accel_ci.defs.jobs import RBE_JOB
from accel_ci.defs.partitions import build_of
from accel_ci.defs.triggers import TRIGGERED_AT
from accel_ci.errors import AccelCiError
from accel_ci.model import Build
from accel_ci.progress import Progress, Step
from accel_ci.storage.file_lock import acquire_or_wait
from accel_ci.storage.manifests import INTEGRATION_STAGES, PIPELINES, RBE_STAGES, ManifestStore, RunTimes
from accel_ci.workspace import Workspace


class Stages:
    """The stages of one Dagster run, which has the pipelines of its build alone."""

    def __init__(self, workspace: Workspace, progress: Progress) -> None:
        self._workspace = workspace
        self._progress = progress

    @contextmanager
    def stage(self, context: dg.AssetExecutionContext) -> Iterator[Step]:
        """Announce the asset's step; an `AccelCiError` fails it with the message as the whole story.

        Manifests of the stage and of those after it go first: should this one stop, the build must not look like an
        earlier run that passed. Such a failure is not tried again, since it would come again.
        """
        name = context.asset_key.path[-1]
        self._workspace.manifests.begin(name, build_of(context))
        try:
            with self._progress.step(name) as step:
                yield step
        except AccelCiError as error:
            raise dg.Failure(description=str(error), allow_retries=False) from error


def stages_of_a_run(workspace: Workspace) -> dg.ResourceDefinition:
    """The resource `stages`: from before a run reads anything until it ends, it holds the run's pipelines of its build.

    Another run at them is waited for, since two would take each other's manifests; the resource `progress` is told.
    """

    @dg.resource(required_resource_keys={"progress"})
    def stages(context: dg.InitResourceContext) -> Iterator[Stages]:
        progress: Progress = context.resources.progress

        def say(text: str) -> None:
            with progress.step("other runs") as step:
                step.note(text)

        with ExitStack() as until_the_run_ends:
            for run, pipeline, build in _pipelines(context.run):
                lock_file = workspace.manifests.pipeline_lock_file(pipeline, build)
                until_the_run_ends.enter_context(acquire_or_wait(lock_file, say, build.name))
                until_the_run_ends.enter_context(_timed(workspace.manifests, run, pipeline, build))
            yield Stages(workspace, progress)

    return stages


@contextmanager
def _timed(manifests: ManifestStore, run: dg.DagsterRun, pipeline: Sequence[str], build: Build) -> Iterator[None]:
    """Keep the times of a run beside its manifests, so that a build's wall time is known without Dagster."""
    asked = run.tags.get(TRIGGERED_AT)
    times = RunTimes(run.run_id, datetime.fromisoformat(asked) if asked else datetime.now(timezone.utc))
    path = manifests.run_file(pipeline, build)
    manifests.write(path, times)
    try:
        yield
    finally:
        manifests.write(path, replace(times, ended_at=datetime.now(timezone.utc)))


def _pipelines(run: dg.DagsterRun | None) -> list[tuple[dg.DagsterRun, tuple[str, ...], Build]]:
    """The pipelines that a run has stages of, always in the same order, with the run and its build."""
    tags = run.tags if run is not None else {}
    revision, variant = tags.get("dagster/partition/revision"), tags.get("dagster/partition/variant")
    if run is None or revision is None or variant is None:
        return []
    steps = run.step_keys_to_execute or (RBE_STAGES if run.job_name == RBE_JOB else INTEGRATION_STAGES)
    return [(run, pipeline, Build(revision, variant)) for pipeline in PIPELINES if not set(pipeline).isdisjoint(steps)]
