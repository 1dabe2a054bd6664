"""`backup`, `restore` and `upgrade`: a project before and after a new release."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import with_workspace

if TYPE_CHECKING:
    from accel_ci.workspace import Workspace

_FOLDER = click.Path(path_type=Path, file_okay=False)
_SAY = partial(click.echo, err=True)


@click.command()
@click.argument("folder", type=_FOLDER)
@with_workspace
def backup(workspace: Workspace, folder: Path) -> None:
    """Back up Dagster's database in PostgreSQL, then the project's data, into FOLDER.

    Builds may go on meanwhile. Into the FOLDER of an earlier backup, only what has changed is copied. It needs `pg_dump`.
    """
    from accel_ci.backup import back_up
    from accel_ci.defs.instance import database_of

    found = back_up(workspace.project, database_of(workspace.project), folder, _SAY)
    click.echo(f"{folder}: {found.files:,} files and the database, at {found.made_at}")


@click.command()
@click.argument("folder", type=_FOLDER)
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_workspace
def restore(workspace: Workspace, folder: Path, yes: bool) -> None:
    """Replace the project's data and Dagster's database by the backup in FOLDER.

    Stop the daemon, the webservers, the code servers and all runs first. All that is newer than the backup goes. It needs
    `pg_restore`.
    """
    from accel_ci.backup import read_backup
    from accel_ci.backup import restore as restore_backup
    from accel_ci.defs.instance import database_of

    found = read_backup(folder)
    if not yes:
        click.confirm(f"Replace all builds and runs of this project by those of {found.made_at}?", abort=True)
    restore_backup(workspace.project, database_of(workspace.project), folder, _SAY)
    click.echo(f"restored as of {found.made_at}, made by accel-ci {found.accel_ci} and Dagster {found.dagster}")


@click.command()
@with_workspace
def upgrade(workspace: Workspace) -> None:
    """Bring Dagster's tables and the project's data to this release.

    Stop the daemon, the webservers, the code servers and all runs first, and make a backup. It may be run again.
    """
    from accel_ci.defs.instance import upgrade_instance

    upgrade_instance(workspace.project, _SAY)
    workspace.manifests.layout.upgrade(_SAY)
    click.echo("Dagster's tables and the data are those of this release")
