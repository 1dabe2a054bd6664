"""What surrounds the work of every asset of a build: having it alone, announcing it, and saying clearly why it stopped."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import dagster as dg

from accel_ci.defs.partitions import build_of
from accel_ci.defs.workspace import Workspace
from accel_ci.errors import AccelCiError
from accel_ci.lock import held
from accel_ci.progress import Progress, Step


class Stages:
    """The stages of one Dagster run. A resource, so that what the run holds is given back when it ends."""

    def __init__(self, workspace: Workspace, progress: Progress, until_the_run_ends: ExitStack) -> None:
        self._workspace = workspace
        self._progress = progress
        self._until_the_run_ends = until_the_run_ends
        self._held: set[object] = set()

    @contextmanager
    def stage(self, context: dg.AssetExecutionContext) -> Iterator[Step]:
        """Announce the asset's step; an `AccelCiError` fails it with the message as the whole story.

        Another run of the same pipeline on the same build is waited for: two would take each other's manifests and cards.
        Manifests of the stage and of those after it go first: should this one stop, the build must not look like an
        earlier run that passed. Such a failure is not tried again, since it would come again.
        """
        name, build = context.asset_key.path[-1], build_of(context)
        manifests = self._workspace.manifests
        try:
            with self._progress.step(name) as step:
                lock = manifests.pipeline_lock(name, build)
                if lock is not None and lock not in self._held:
                    self._until_the_run_ends.enter_context(held(lock, step, build.name))
                    self._held.add(lock)
                manifests.begin(name, build)
                yield step
        except AccelCiError as error:
            raise dg.Failure(description=str(error), allow_retries=False) from error


def stages_of_a_run(workspace: Workspace) -> dg.ResourceDefinition:
    """The resource `stages`: it holds what a run holds, and tells the resource `progress` of its steps."""

    @dg.resource(required_resource_keys={"progress"})
    def stages(context: dg.InitResourceContext) -> Iterator[Stages]:
        with ExitStack() as until_the_run_ends:
            yield Stages(workspace, context.resources.progress, until_the_run_ends)

    return stages
