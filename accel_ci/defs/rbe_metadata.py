"""The metadata of the source build's assets, as plain functions of their manifests."""

from collections.abc import Iterable
from typing import Any

import dagster as dg

from accel_ci.defs.metadata import table
from accel_ci.model import BazelTarget, BazelTestResults, SourceBuild
from accel_ci.storage.artifacts import ArtifactStore


def of_sources(sources: SourceBuild) -> dict[str, Any]:
    """Describe a source tree and its patches."""
    return {
        "workspace": dg.MetadataValue.path(sources.workspace),
        "backend": sources.backend,
        "upstream_sha": sources.upstream or "not used",
        "patches": table(
            ["patch", "state"],
            [[n, "was there already" if n in sources.already_applied else "applied"] for n in sources.patches],
        ),
        "reused": sources.reused,
        "work_seconds": sources.work_s,
    }


def of_results(results: BazelTestResults, targets: Iterable[BazelTarget], artifacts: ArtifactStore) -> dict[str, Any]:
    """Describe Bazel's results: counts, cache hits, and the targets with their logs, failed ones first."""
    targets = sorted(targets, key=lambda target: (target.status in ("PASSED", "FLAKY"), target.label))
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


def results_note(results: BazelTestResults) -> str:
    """Sum the results up in a line."""
    actions = results.actions
    counts = ", ".join(f"{count} {outcome}" for outcome, count in results.counts.items())
    return results.infra or (
        f"{counts}; {results.cached} cached; {actions.executed} actions ran, {actions.local_cache_hits} local and "
        f"{actions.remote_cache_hits} remote cache hits"
    )
