"""What surrounds the work of every asset of a build: announcing it, and saying clearly why it stopped."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from accel_ci.defs.partitions import build_of
from accel_ci.defs.workspace import Workspace
from accel_ci.errors import AccelCiError
from accel_ci.progress import Progress, Step


@contextmanager
def stage(context: dg.AssetExecutionContext, workspace: Workspace, progress: Progress) -> Iterator[Step]:
    """Announce the asset's step; an `AccelCiError` fails it with the message as the whole story.

    Manifests of the stage and of those after it go first: should this one stop, the build must not look like an earlier
    run that passed. Such a failure is not tried again, since it would come again.
    """
    name = context.asset_key.path[-1]
    workspace.manifests.begin(name, build_of(context))
    try:
        with progress.step(name) as step:
            yield step
    except AccelCiError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from error
