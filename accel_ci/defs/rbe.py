"""The source build: the backend's and upstream's sources, built and tested by Bazel, with remote execution where configured.

Nothing here knows of the integration pipeline; the two meet at `revision` and in the ledger.
"""

import time
from collections.abc import Iterable
from typing import Any

import dagster as dg

from accel_ci.config.settings import Rbe
from accel_ci.defs.metadata import link, stage_result, table
from accel_ci.defs.partitions import build_of
from accel_ci.defs.stage import Stages, stage_asset
from accel_ci.errors import BuildError
from accel_ci.model import BazelTarget, BazelTestResults, SourceBuild
from accel_ci.pipelines import RBE
from accel_ci.rbe.bazel import forget_run, keep_run, kept_run, run_bazel
from accel_ci.rbe.results import read_targets, store_results
from accel_ci.rbe.source_tree import make_source_tree
from accel_ci.workspace import Workspace

_PASSED = ("PASSED", "FLAKY")


def build_assets(workspace: Workspace) -> list[dg.AssetsDefinition]:
    """Make the assets of the pipeline."""
    return [
        stage_asset(RBE, workspace, source_build, SourceBuild, kinds={"git"}),
        stage_asset(RBE, workspace, bazel_test_results, BazelTestResults, kinds={"bazel"}),
    ]


def source_build(context: dg.AssetExecutionContext, stages: dg.ResourceParam[Stages]) -> dg.MaterializeResult:
    """The sources at the revision's SHAs with the backend's patches applied in order."""
    with stages.stage(context) as step:
        sources = make_source_tree(stages.workspace.project, _rbe(stages.workspace), stages.revision(context))
        step.note(f"{len(sources.patches)} patches{' (reused)' if sources.reused else ''}")
    return stage_result(sources, build_of(context), sources.digest, sources_metadata(sources))


def bazel_test_results(
    context: dg.AssetExecutionContext, source_build: SourceBuild, stages: dg.ResourceParam[Stages]
) -> dg.MaterializeResult:
    """Every attempt of every test of the source build; what failed to build has the compiler's message."""
    workspace, build = stages.workspace, build_of(context)
    rbe, variant = _rbe(workspace), workspace.project.settings.variant(build.variant)
    with stages.stage(context) as step:
        started = time.monotonic()
        words = {"variant": variant.name, "python": variant.python}
        place, day = workspace.bazel_context(build), stages.revision(context).created_at.date()
        key = f"{source_build.digest} {rbe.model_dump_json()}"
        if (run := kept_run(key, place)) is None:
            run = run_bazel(rbe, source_build, place, words, step)
            keep_run(run, key, place)
        else:
            step.say("Bazel has run already; its results could not be stored, and are stored now")
        work_s = round(time.monotonic() - started, 3)
        try:
            known = workspace.trusted_results
            results = store_results(run, build, day, rbe, workspace.artifacts, workspace.results, work_s, known)
        except BuildError:
            forget_run(place)
            raise
        forget_run(place)
        step.note(results_note(results))
    targets = read_targets(results, workspace.artifacts)
    return stage_result(results, build_of(context), results.digest, results_metadata(results, targets, workspace))


def sources_metadata(sources: SourceBuild) -> dict[str, Any]:
    """Describe a source tree and its patches."""
    patches = [[n, "was there already" if n in sources.already_applied else "applied"] for n in sources.patches]
    return {
        "workspace": dg.MetadataValue.path(sources.workspace),
        "backend": sources.backend,
        "upstream_sha": sources.upstream or "not used",
        "patches": table(["patch", "state"], patches),
        "reused": sources.reused,
        "work_seconds": sources.work_s,
    }


def results_metadata(results: BazelTestResults, targets: Iterable[BazelTarget], workspace: Workspace) -> dict[str, Any]:
    """Describe Bazel's results: counts, cache hits, and the targets with their logs, failed ones first."""
    targets = sorted(targets, key=lambda target: (target.status in _PASSED, target.label))
    logs = {target: " ".join(str(link(workspace, log).value) for log in target.logs) for target in targets}
    rows = [[target.label, target.status, target.cached, target.message or "", logs[target]] for target in targets]
    failed = [target for target in targets[:20] if target.status not in _PASSED and target.logs]
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
        "events": link(workspace, results.events),
        "log": link(workspace, results.log),
        "targets": table(["target", "status", "cached", "message", "logs"], rows, limit=200),
        **{f"log {target.label}": link(workspace, target.logs[0]) for target in failed},
    }


def results_note(results: BazelTestResults) -> str:
    """Sum the results up in a line."""
    actions = results.actions
    counts = ", ".join(f"{count} {outcome}" for outcome, count in results.counts.items())
    return results.infra or (
        f"{counts}; {results.cached} cached; {actions.executed} actions ran, {actions.local_cache_hits} local and "
        f"{actions.remote_cache_hits} remote cache hits"
    )


def _rbe(workspace: Workspace) -> Rbe:
    """Return the settings, without which the pipeline has no assets."""
    rbe = workspace.project.settings.rbe
    if rbe is None:
        raise TypeError("the section 'rbe' is missing")
    return rbe
