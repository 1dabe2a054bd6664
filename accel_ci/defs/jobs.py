"""The jobs: the story of a build, asked for by different triggers, and that of its source build.

Each pipeline has jobs of its own, and all of them end in the ledger and what is made of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from accel_ci.model import Trigger

DESCRIPTIONS: dict[Trigger, str] = {
    "nightly": "Everything in scope, once a night: wheel, runtime image, smoke, device tests, ledger, flakiness, HUD.",
    "intraday": "The nightly's story several times a day, on what is in scope by day; skipped while one still runs.",
    "main": "What a new upstream commit starts: the quick suites, one run for each commit that is tested.",
    "pr": "What a pull request of the backend starts; its result blocks nobody.",
}


RBE_JOB = "nightly_rbe"
RBE_DESCRIPTION = (
    "The source build of the night's revision: sources, patches, Bazel's build and tests with remote execution, ledger, "
    "flakiness, HUD."
)


@dataclass(frozen=True)
class Jobs:
    """The jobs of a project: one of the integration pipeline for each trigger, and that of the source build, if any."""

    integration: dict[Trigger, Any]
    rbe: Any | None

    @property
    def all(self) -> list[Any]:
        """Every job."""
        return [*self.integration.values(), *([] if self.rbe is None else [self.rbe])]


def job_name(trigger: Trigger) -> str:
    """The job of the integration pipeline that a trigger starts."""
    return "nightly_integration" if trigger in ("nightly", "manual") else trigger


def build_jobs(
    integration: Sequence[dg.AssetsDefinition], rbe: Sequence[dg.AssetsDefinition], common: Sequence[dg.AssetsDefinition]
) -> Jobs:
    """The jobs over the assets of each pipeline with the `common` ones that follow both.

    Steps share a process: a process each would cost seconds.
    """
    return Jobs(
        {
            trigger: _job(job_name(trigger), trigger, description, [*integration, *common])
            for trigger, description in DESCRIPTIONS.items()
        },
        _job(RBE_JOB, "nightly", RBE_DESCRIPTION, [*rbe, *common]) if rbe else None,
    )


def _job(name: str, trigger: Trigger, description: str, assets: Sequence[dg.AssetsDefinition]) -> Any:
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*assets),
        description=description,
        executor_def=dg.in_process_executor,
        tags={"accel_ci/trigger": trigger},
    )
