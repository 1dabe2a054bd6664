"""`janitor`: what runs that were killed left behind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import with_project

if TYPE_CHECKING:
    from accel_ci.config import Project


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@with_project
def janitor(project: Project, dry_run: bool) -> None:
    """Pause instances whose lease has run out, and clear away containers and Jobs that dead runs left; meant for cron.

    Exit status: 0 when nothing is left behind, 1 when something could not be cleared away.
    """
    from accel_ci.config import DockerPoolSettings, KubernetesPoolSettings
    from accel_ci.pool.command_provider import CommandProvider
    from accel_ci.pool.instance import LEASES, enforce_leases

    failed = False
    for enforced in enforce_leases(project.home / LEASES, CommandProvider.from_description, dry_run=dry_run):
        failed = failed or enforced.problem is not None
        state = enforced.problem or ("paused" if enforced.paused else "would be paused")
        click.echo(
            f"instance of {enforced.lease}: its lease ran out at {enforced.expired_at:%Y-%m-%d %H:%M:%S} UTC, {state}"
        )
    if isinstance(project.settings.pool, DockerPoolSettings):
        from accel_ci.pool.docker import remove_abandoned

        for name in remove_abandoned(dry_run=dry_run):
            click.echo(f"container {name}: its driver is gone: {'would be removed' if dry_run else 'removed'}")
    if isinstance(project.settings.pool, KubernetesPoolSettings):
        from accel_ci.defs.leftovers import clear_leftovers_here

        for leftover in clear_leftovers_here(project, dry_run=dry_run):
            click.echo(f"{leftover.what}: {leftover.why}: {'would be deleted' if dry_run else 'deleted'}")
    sys.exit(1 if failed else 0)
