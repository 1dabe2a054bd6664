"""Delete what dead runs left in the cluster and in the bucket of its rounds."""

from __future__ import annotations

import time

from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.job import BUILD_ANNOTATION, MANAGED_BY, PROJECT_LABEL, RUN_LABEL, label
from accel_ci.pool.kubernetes.pods import timestamp
from accel_ci.pool.project_pool import EndedAt, Leftover
from accel_ci.rounds.round_bucket import RoundStore
from accel_ci.rounds.signing import LONGEST_S

_RETRY_S = 900.0
"""The time that a Job is kept after the end of its run, for a retried step, in seconds."""


def delete_old_jobs(settings: KubernetesPoolSettings, project: str, ended_at: EndedAt, *, dry_run: bool) -> list[Leftover]:
    """Delete the project's Jobs whose run is over or that are too old for any run. Raises `PoolError`."""
    cluster = Cluster(settings)
    limit_s = settings.queue_seconds + settings.round_seconds + settings.keep_seconds
    labels = {**MANAGED_BY, PROJECT_LABEL: label(project)}
    found = []
    for job in cluster.jobs(",".join(f"{key}={value}" for key, value in labels.items())):
        metadata = job["metadata"]
        run = metadata["labels"].get(RUN_LABEL, "")
        age_s = time.time() - timestamp(metadata["creationTimestamp"])
        over = ended_at(run) if run else None
        if over is not None and time.time() - over > _RETRY_S:
            why = f"its run {run} is over"
        elif age_s > limit_s:
            why = f"it is {age_s / 3600:.1f} hours old"
        else:
            continue
        if not dry_run and not cluster.delete_job_as_seen(job):
            continue  # it has changed since, so the next sweep decides
        build = (metadata.get("annotations") or {}).get(BUILD_ANNOTATION) or "a command"
        found.append(Leftover(f"Job {cluster.namespace}/{metadata['name']} of {build}", why, "deleted"))
    return found


def delete_old_rounds(store: RoundStore, project: str, *, dry_run: bool) -> list[Leftover]:
    """Delete rounds so old that no signed URL opens them any more. Raises `PoolError`."""
    found = []
    for run, changed in store.runs(project).items():
        if time.time() - changed > LONGEST_S:
            if not dry_run:
                store.of_round(f"{project}/{run}").clear()
            rounds = f"rounds {store.prefix}/{project}/{run} in bucket {store.bucket}"
            found.append(Leftover(rounds, "unchanged for a week", "deleted"))
    return found
