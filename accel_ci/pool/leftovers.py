"""What runs that died have left on this machine, in a cluster and in the bucket of its rounds: found, and cleared away."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from accel_ci.config.settings import DockerPoolSettings, KubernetesPoolSettings, PoolSettings
from accel_ci.instance.command_provider import CommandProvider
from accel_ci.instance.lease import enforce_leases
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.job import BUILD_ANNOTATION, MANAGED_BY, PROJECT_LABEL, RUN_LABEL, label
from accel_ci.pool.kubernetes.pods import timestamp
from accel_ci.rounds.round_bucket import RoundStore
from accel_ci.rounds.signing import LONGEST_S

RETRY_S = 900.0
"""How long after the end of its run a Job is left for a step that is tried again, in seconds."""


@dataclass(frozen=True)
class Leftover:
    """Something that nobody will come back for, and why that is known.

    `ending` is the word for what is done about it, `problem` why that could not be done.
    """

    what: str
    why: str
    ending: str
    problem: str | None = None

    def describe(self, *, dry_run: bool = False) -> str:
        """A line about it."""
        return f"{self.what}: {self.why}: {self.problem or (f'would be {self.ending}' if dry_run else self.ending)}"


def clear_machine(settings: PoolSettings, leases: Path, *, dry_run: bool = False) -> list[Leftover]:
    """Pause instances whose lease has run out, and remove containers whose driver is gone.

    Raises `PoolError` when containers are the pool's and there is no engine.
    """
    found = []
    for lease in enforce_leases(leases, CommandProvider.from_description, dry_run=dry_run):
        why = f"its lease ran out at {lease.expired_at:%Y-%m-%d %H:%M:%S} UTC"
        found.append(Leftover(f"instance of {lease.lease}", why, "paused", lease.problem))
    if isinstance(settings, DockerPoolSettings):
        from accel_ci.pool.docker import remove_abandoned  # the engine's SDK, for those who have the pool

        names = remove_abandoned(dry_run=dry_run)
        found += [Leftover(f"container {name}", "its driver is gone", "removed") for name in names]
    return found


def clear_cluster(
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
        if not dry_run and not cluster.delete_job_as_seen(job):
            continue  # somebody has taken it up meanwhile, or it goes on by itself: the next look tells
        build = (metadata.get("annotations") or {}).get(BUILD_ANNOTATION) or "a command"
        found.append(Leftover(f"Job {cluster.namespace}/{metadata['name']} of {build}", why, "deleted"))
    for run, changed in store.runs(project).items():
        if now - changed > LONGEST_S:
            if not dry_run:
                store.of_round(f"{project}/{run}").clear()
            rounds = f"rounds {store.prefix}/{project}/{run} in bucket {store.bucket}"
            found.append(Leftover(rounds, "unchanged for a week", "deleted"))
    return found


def _labels(project: str) -> dict[str, str]:
    return {**MANAGED_BY, PROJECT_LABEL: label(project)}
