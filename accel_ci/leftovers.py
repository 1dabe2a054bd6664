"""Everything that dead runs left: containers, a cluster's Jobs, Bazel's servers, instances. Liveness decides, not age.

The start of a run clears it away, and the janitor does. How each engine knows that nobody lives who wants a thing is in the
engine's package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accel_ci.config.settings import Project
from accel_ci.docker.container import remove_ownerless
from accel_ci.errors import AccelCiError
from accel_ci.instance.lease import LEASES, enforce_leases
from accel_ci.model import Build
from accel_ci.pool.choose_pool import pool_for
from accel_ci.pool.project_pool import IsOver, Leftover
from accel_ci.rbe.bazel import clean_up_abandoned
from accel_ci.storage.scratch_folder import remove_abandoned_folders


def clear_leftovers(
    project: Project, is_over: IsOver, build: Build | None = None, *, dry_run: bool = False
) -> list[Leftover]:
    """End and remove what no living run owns, and return it; with `dry_run` only return it.

    A run passes its `build`, whose rounds it is about to take up, and spares old records. What cannot be looked for is
    a leftover with a problem.
    """
    pool, settings = pool_for(project.settings), project.settings
    made = f"{build.revision}/{build.variant}" if build else ""

    def instances() -> list[Leftover]:
        leases = enforce_leases(project.home / LEASES, dry_run=dry_run)
        return [Leftover(f"instance of {lease.lease}", lease.why, "paused", lease.problem) for lease in leases]

    def containers() -> list[Leftover]:
        names = remove_ownerless(dry_run=dry_run)
        return [Leftover(f"container {name}", "the process that started it is gone", "removed") for name in names]

    def bazel() -> list[Leftover]:
        folders = clean_up_abandoned(project.home / "rbe", dry_run=dry_run)
        return [Leftover(f"Bazel in {folder}", "its run is gone", "ended") for folder in folders]

    def scratch_folders() -> list[Leftover]:
        places = (None, project.home / "sources", project.home / "rbe" / "sources")
        folders = [folder for place in places for folder in remove_abandoned_folders(place, dry_run=dry_run)]
        return [Leftover(str(folder), "the process that made it is gone", "removed") for folder in folders]

    uses_containers = any(settings.wheels_of(variant).builder for variant in settings.variants)
    uses_containers = uses_containers or bool(settings.rbe and settings.rbe.image)
    kinds: Sequence[tuple[str, Callable[[], list[Leftover]]]] = (
        ("instances", instances),
        ("workers", lambda: pool.remove_leftovers(is_over, made, dry_run=dry_run)),
        *([("containers", containers)] if uses_containers else []),
        ("Bazel", bazel),
        ("folders", scratch_folders),
        *([("records", lambda: pool.remove_old(dry_run=dry_run))] if build is None else []),
    )
    return [leftover for what, clear in kinds for leftover in _attempt(what, clear)]


def _attempt(what: str, clear: Callable[[], list[Leftover]]) -> list[Leftover]:
    """Clear one kind away, so that an engine that is away hinders no other."""
    try:
        return clear()
    except AccelCiError as error:
        return [Leftover(f"{what} of dead runs", "nobody may want them", "cleared away", str(error))]
