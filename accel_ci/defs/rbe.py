"""The source build: the backend's and upstream's sources, built and tested by Bazel, with remote execution where configured.

Nothing here knows of the integration pipeline; the two meet at `revision` and in the ledger.
"""

import time

import dagster as dg

from accel_ci.config.settings import Rbe
from accel_ci.defs import rbe_metadata as metadata
from accel_ci.defs.partitions import build_of
from accel_ci.defs.stage import Stages, stage_asset
from accel_ci.model import BazelTestResults, Revision, SourceBuild
from accel_ci.pipelines import RBE
from accel_ci.rbe.bazel import run_bazel
from accel_ci.rbe.results import read_targets, store_results
from accel_ci.rbe.source_tree import make_source_tree
from accel_ci.workspace import Workspace


def build_assets(workspace: Workspace) -> list[dg.AssetsDefinition]:
    """Make the assets of the pipeline."""
    return [
        stage_asset(RBE, workspace, source_build, SourceBuild, kinds={"git"}),
        stage_asset(RBE, workspace, bazel_test_results, BazelTestResults, kinds={"bazel"}),
    ]


def source_build(
    context: dg.AssetExecutionContext,
    revision: Revision,
    workspace: dg.ResourceParam[Workspace],
    stages: dg.ResourceParam[Stages],
) -> dg.MaterializeResult:
    """The sources at the revision's SHAs with the backend's patches applied in order."""
    with stages.stage(context) as step:
        sources = make_source_tree(workspace.project, _rbe(workspace), revision)
        step.note(f"{len(sources.patches)} patches{' (reused)' if sources.reused else ''}")
    return dg.MaterializeResult(
        value=sources, data_version=dg.DataVersion(sources.digest), metadata=metadata.of_sources(sources)
    )


def bazel_test_results(
    context: dg.AssetExecutionContext,
    revision: Revision,
    source_build: SourceBuild,
    workspace: dg.ResourceParam[Workspace],
    stages: dg.ResourceParam[Stages],
) -> dg.MaterializeResult:
    """Every attempt of every test of the source build; what failed to build has the compiler's message."""
    build, rbe = build_of(context), _rbe(workspace)
    variant = workspace.project.settings.variant(build.variant)
    with stages.stage(context) as step:
        started = time.monotonic()
        words = {"variant": variant.name, "python": variant.python}
        run = run_bazel(rbe, source_build, workspace.bazel_context(build), words, step)
        work_s, day = round(time.monotonic() - started, 3), revision.created_at.date()
        results = store_results(run, build, day, rbe, workspace.artifacts, workspace.results, work_s)
        step.note(metadata.results_note(results))
    return dg.MaterializeResult(
        value=results,
        data_version=dg.DataVersion(results.digest),
        metadata=metadata.of_results(results, read_targets(results, workspace.artifacts), workspace.artifacts),
    )


def _rbe(workspace: Workspace) -> Rbe:
    """Return the settings, without which the pipeline has no assets."""
    rbe = workspace.project.settings.rbe
    if rbe is None:
        raise TypeError("the section 'rbe' is missing")
    return rbe
