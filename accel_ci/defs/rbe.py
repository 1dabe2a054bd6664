"""The source build: the backend's and upstream's sources, built and tested by Bazel, where it is set up by remote execution.

Nothing here knows of the integration pipeline; the two meet at `revision` and in the ledger.
"""

import time
from typing import Any

import dagster as dg

from accel_ci.config.settings import Rbe
from accel_ci.defs.metadata import table
from accel_ci.defs.partitions import build_of, builds, of_revision
from accel_ci.defs.stage import Stages
from accel_ci.model import BazelTestResults, Revision, SourceBuild
from accel_ci.rbe.bazel import run_bazel
from accel_ci.rbe.results import read_targets, store_results
from accel_ci.rbe.source_tree import make_source_tree
from accel_ci.workspace import Workspace

GROUP = "rbe"


def rbe_assets(workspace: Workspace) -> list[dg.AssetsDefinition]:
    """The assets of the pipeline, partitioned by the variants of the project; none where no source build is configured."""
    settings = workspace.project.settings
    return [] if settings.rbe is None else _assets(workspace, settings.rbe)


def _assets(workspace: Workspace, rbe: Rbe) -> list[dg.AssetsDefinition]:
    settings, artifacts = workspace.project.settings, workspace.artifacts
    common: dict[str, Any] = {
        "group_name": GROUP,
        "owners": list(settings.backend.owners),
        "partitions_def": builds([variant.name for variant in settings.variants]),
    }

    @dg.asset(**common, ins={"revision": of_revision()}, kinds={"git"})
    def source_build(
        context: dg.AssetExecutionContext, revision: Revision, stages: dg.ResourceParam[Stages]
    ) -> dg.MaterializeResult[SourceBuild]:
        """The sources at the revision's SHAs with the backend's patches applied in order."""
        with stages.stage(context) as step:
            sources = make_source_tree(workspace.project, rbe, revision)
            step.note(f"{len(sources.patches)} patches{' (reused)' if sources.reused else ''}")
        return dg.MaterializeResult(
            value=sources,
            data_version=dg.DataVersion(sources.digest),
            metadata={
                "workspace": dg.MetadataValue.path(sources.workspace),
                "backend": sources.backend,
                "upstream_sha": sources.upstream or "not used",
                "patches": table(
                    ["patch", "state"],
                    [[n, "was there already" if n in sources.already_applied else "applied"] for n in sources.patches],
                ),
                "reused": sources.reused,
                "work_seconds": sources.work_s,
            },
        )

    @dg.asset(**common, ins={"revision": of_revision()}, kinds={"bazel"})
    def bazel_test_results(
        context: dg.AssetExecutionContext,
        revision: Revision,
        source_build: SourceBuild,
        stages: dg.ResourceParam[Stages],
    ) -> dg.MaterializeResult[BazelTestResults]:
        """Every attempt of every test of the source build; what failed to build has the compiler's message."""
        build = build_of(context)
        variant = settings.variant(build.variant)
        with stages.stage(context) as step:
            started = time.monotonic()
            words = {"variant": variant.name, "python": variant.python}
            run = run_bazel(rbe, source_build, workspace.bazel_context(build), words, step)
            work_s = round(time.monotonic() - started, 3)
            day = revision.created_at.date()
            results = store_results(run, build, day, rbe, artifacts, workspace.results, work_s)
            step.note(results.infra or _in_short(results))
        return dg.MaterializeResult(
            value=results,
            data_version=dg.DataVersion(results.digest),
            metadata=_metadata(results, workspace),
        )

    return [source_build, bazel_test_results]


def _in_short(results: BazelTestResults) -> str:
    actions = results.actions
    counts = ", ".join(f"{count} {outcome}" for outcome, count in results.counts.items())
    return (
        f"{counts}; {results.cached} cached; {actions.executed} actions ran, {actions.local_cache_hits} local and "
        f"{actions.remote_cache_hits} remote cache hits"
    )


def _metadata(results: BazelTestResults, workspace: Workspace) -> dict[str, Any]:
    artifacts = workspace.artifacts
    targets = sorted(read_targets(results, artifacts), key=lambda t: (t.status in ("PASSED", "FLAKY"), t.label))
    return {
        "infra": results.infra or "none",
        "tests": results.expected,
        **{f"attempts_{outcome}": count for outcome, count in results.counts.items()},
        "attempts_cached": results.cached,
        "actions_executed": results.actions.executed,
        "local_cache_hits": results.actions.local_cache_hits,
        "remote_cache_hits": results.actions.remote_cache_hits,
        "makespan_seconds": results.makespan_s,
        "work_seconds": results.work_s,
        "events": dg.MetadataValue.url(artifacts.uri(results.events)),
        "log": dg.MetadataValue.url(artifacts.uri(results.log)),
        "targets": table(
            ["target", "status", "cached", "message", "logs"],
            [
                [t.label, t.status, t.cached, t.message or "", " ".join(artifacts.uri(log) for log in t.logs)]
                for t in targets
            ],
            limit=200,
        ),
        **{
            f"log {target.label}": dg.MetadataValue.url(artifacts.uri(target.logs[0]))
            for target in targets[:20]
            if target.logs and target.status not in ("PASSED", "FLAKY")
        },
    }
