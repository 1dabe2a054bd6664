"""The jobs: the same story of a build, asked for by different triggers."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from accel_ci.model import Trigger

DESCRIPTIONS: dict[Trigger, str] = {
    "nightly": "Everything in scope, once a night: wheel, runtime image, smoke, device tests, ledger, flakiness, HUD.",
    "intraday": "The nightly's story several times a day, on what is in scope by day; skipped while one still runs.",
    "main": "What a new upstream commit starts: the quick suites, one run for each commit that is tested.",
    "pr": "What a pull request of the backend starts; its result blocks nobody.",
}


def build_jobs(assets: Sequence[dg.AssetsDefinition]) -> dict[Trigger, Any]:
    """One job for each trigger. Steps share a process: a process each would cost seconds."""
    return {
        trigger: dg.define_asset_job(
            trigger,
            selection=dg.AssetSelection.assets(*assets),
            description=description,
            executor_def=dg.in_process_executor,
            tags={"accel_ci/trigger": trigger},
        )
        for trigger, description in DESCRIPTIONS.items()
    }
