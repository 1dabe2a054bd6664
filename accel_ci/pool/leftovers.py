"""Clear away what dead runs left: machines that still run, and what the pool itself finds."""

from __future__ import annotations

from pathlib import Path

from accel_ci.instance.lease import enforce_leases
from accel_ci.pool.project_pool import EndedAt, Leftover, ProjectPool


def clear_leftovers(pool: ProjectPool, leases: Path, ended_at: EndedAt, *, dry_run: bool = False) -> list[Leftover]:
    """Pause instances whose lease has run out, and remove the pool's leftovers. Raises `PoolError`."""
    instances = [
        Leftover(
            f"instance of {lease.lease}", f"its lease ran out at {lease.expired_at:%Y-%m-%d %H:%M:%S} UTC", "paused",
            lease.problem,
        )
        for lease in enforce_leases(leases, dry_run=dry_run)
    ]  # fmt: skip
    return instances + pool.remove_leftovers(ended_at, dry_run=dry_run)
