"""The activity of a build's pipelines: which stage a run is at, or where the last one stopped.

From the record that each run keeps beside the manifests, and from the lock that it holds. What it found is in the ledger.
"""

from __future__ import annotations

from accel_ci.model import Build
from accel_ci.pipelines import DEVICELESS_RESULTS, Pipeline
from accel_ci.storage.manifests import ManifestStore, PipelineRun

WAITS = "waits for a maintainer's label"
"""The activity of a stranger's build whose deviceless suites have run."""


def read_activity(manifests: ManifestStore, build: Build) -> dict[str, str]:
    """Describe the last run of each pipeline that has not reported to the ledger; the keys are the pipelines' names.

    Examples: `running at wheel`, `stopped after wheel failed`, `interrupted at wheel`, `stopped at wheel` (it was killed),
    `waits for a maintainer's label`.
    """
    found = {
        pipeline.name: _describe(manifests, pipeline, build, run)
        for pipeline, run in manifests.last_runs(build).items()
        if not run.reported
    }
    return {name: text for name, text in found.items() if text is not None}


def _describe(manifests: ManifestStore, pipeline: Pipeline, build: Build, run: PipelineRun) -> str | None:
    """Describe a run; None for one that ended well, such as that of a single asset, or was killed before it began.

    A stranger's that ended well waits: the suites that take a card are still to come, unless its commit is obsolete.
    """
    stage = run.stage or pipeline.stages[0]
    if run.ended_at is None and manifests.has_run(pipeline, build):
        return f"running at {stage}"
    if run.ended_at is None:
        return f"stopped at {stage}" if run.stage else None
    if run.ending == "failed":
        return f"stopped after {stage} failed"
    if run.ending:
        return f"interrupted at {stage}"
    return (run.obsolete or WAITS) if run.before_label and stage == DEVICELESS_RESULTS else None
