"""`janitor`: clean up what killed runs left behind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import with_project

if TYPE_CHECKING:
    from accel_ci.config.settings import Project


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@with_project
def janitor(project: Project, dry_run: bool) -> None:
    """Clean up what dead runs left behind.

    Pauses instances whose lease has expired, and deletes containers and Jobs. The daemon does this every 15 minutes
    (`janitor_schedule`). Without a daemon, run this command from cron.

    Exit status: 0 if nothing is left behind, 1 if something could not be deleted.
    """
    from accel_ci.defs.upkeep import clear_leftovers_here

    found = clear_leftovers_here(project, dry_run=dry_run)
    for leftover in found:
        click.echo(leftover.describe(dry_run=dry_run))
    sys.exit(int(any(leftover.problem is not None for leftover in found)))
