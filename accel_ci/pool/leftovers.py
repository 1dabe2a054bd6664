"""What steps that died have left in a cluster and in the bucket of its rounds: found, and cleared away."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from accel_ci.config import KubernetesPoolSettings
from accel_ci.pool.cluster import Cluster
from accel_ci.pool.kubernetes_job import BUILD_ANNOTATION, MANAGED_BY, PROJECT_LABEL, RUN_LABEL, label
from accel_ci.pool.kubernetes_pods import timestamp
from accel_ci.pool.round_bucket import RoundStore
from accel_ci.pool.signing import LONGEST_S

RETRY_S = 900.0
"""How long after the end of its run a Job is left for a step that is tried again, in seconds."""


@dataclass(frozen=True)
class Leftover:
    """Something that nobody will come back for, and why that is known."""

    what: str
    why: str


def clear_leftovers(
    settings: KubernetesPoolSettings,
    store: RoundStore,
    project: str,
    ended_at: Callable[[str], float | None] = lambda run: None,
    *,
    dry_run: bool = False,
) -> list[Leftover]:
    """Delete the project's Jobs whose run is over or that are too old for any, and rounds that no URL opens any more.

    `ended_at` gives the time at which a run ended, as seconds since the epoch, None for one that has not or is not known.
    Raises `PoolError` when the cluster or the bucket cannot be reached.
    """
    cluster = Cluster(settings)
    now = time.time()
    limit_s = settings.queue_seconds + settings.round_seconds + settings.keep_seconds
    found = []
    for job in cluster.jobs(",".join(f"{key}={value}" for key, value in _labels(project).items())):
        metadata = job["metadata"]
        run = metadata["labels"].get(RUN_LABEL, "")
        age_s = now - timestamp(metadata["creationTimestamp"])
        over = ended_at(run) if run else None
        if over is not None and now - over > RETRY_S:
            why = f"its run {run} is over"
        elif age_s > limit_s:
            why = f"it is {age_s / 3600:.1f} hours old"
        else:
            continue
        if not dry_run:
            cluster.delete_job(metadata["name"])
        build = (metadata.get("annotations") or {}).get(BUILD_ANNOTATION) or "a command"
        found.append(Leftover(f"Job {cluster.namespace}/{metadata['name']} of {build}", why))
    for run, changed in store.runs(project).items():
        if now - changed > LONGEST_S:
            if not dry_run:
                store.of_round(f"{project}/{run}").clear()
            found.append(Leftover(f"rounds {store.prefix}/{project}/{run} in bucket {store.bucket}", "unchanged for a week"))
    return found


def _labels(project: str) -> dict[str, str]:
    return {**MANAGED_BY, PROJECT_LABEL: label(project)}
