"""`janitor`: what runs that were killed left behind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import with_project

if TYPE_CHECKING:
    from accel_ci.config.settings import Project


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@with_project
def janitor(project: Project, dry_run: bool) -> None:
    """Pause instances whose lease has run out, and clear away containers and Jobs that dead runs left.

    The daemon does it every quarter of an hour (`janitor_schedule`); this is for cron on a machine without it.

    Exit status: 0 when nothing is left behind, 1 when something could not be cleared away.
    """
    from accel_ci.defs.leftovers import clear_leftovers_here

    found = clear_leftovers_here(project, dry_run=dry_run)
    for leftover in found:
        click.echo(leftover.describe(dry_run=dry_run))
    sys.exit(int(any(leftover.problem is not None for leftover in found)))
