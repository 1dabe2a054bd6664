"""Commands for the configuration and the machine: `init`, `validate`, `doctor`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import terminal, with_workspace
from accel_ci.errors import AccelCiError

if TYPE_CHECKING:
    from accel_ci.workspace import Workspace


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option("--location", metavar="NAME", help="Add a backend of this name to a shared deployment.")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The deployment's workspace file [default: workspace.yaml beside FOLDER].",
)
@click.option("--kubernetes", is_flag=True, help="The deployment is on Kubernetes: write the manifests of a code server.")
@click.option("--dry-run", is_flag=True, help="Print the files, and write nothing.")
def init(folder: Path | None, location: str | None, workspace: Path | None, kubernetes: bool, dry_run: bool) -> None:
    """Write a commented starter file, accel_ci.yaml, to FOLDER.

    With --location, the project joins a deployment that other backends share. FOLDER is then by default one of that name. It
    gets a code location as well, which is added to the workspace file. A configuration that names the location is kept.
    """
    from accel_ci.config.loading import CONFIG_NAME
    from accel_ci.config.new_location import WORKSPACE_NAME, plan_location, starter

    if location is None:
        if workspace or kubernetes:
            raise AccelCiError(
                "--workspace and --kubernetes are about a shared deployment: name the backend with --location"
            )
        target = (folder or Path()) / CONFIG_NAME
        if target.exists():
            raise AccelCiError(f"{target} already exists; move it away first")
        planned = {target: starter()}
    else:
        place = folder or Path(location)
        workspace = workspace or place.parent / WORKSPACE_NAME
        planned = plan_location(location, place, workspace, kubernetes=kubernetes)
        target = place / CONFIG_NAME
    for file, text in planned.items():
        if dry_run:
            click.echo(f"# {file}\n{text}")
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    if dry_run:
        return
    if location is None:
        click.echo(f"Wrote {target}. Edit it, then run: accel-ci validate && accel-ci run nightly")
        return
    click.echo(f"Wrote {', '.join(map(str, planned))}.")
    click.echo(f"Edit {target}, then run: accel-ci --config {target} validate")
    if kubernetes:
        click.echo(
            f"In the overlay beside {workspace}, name {target.parent} in 'resources', and {workspace} (docs/deployment.md)"
        )


@click.command()
@with_workspace
def validate(workspace: Workspace) -> None:
    """Check the configuration and print a line for each mistake."""
    from accel_ci.config.extras import require_configured_extras
    from accel_ci.scope.rule_files import with_rule_files

    project, settings = workspace.project, workspace.project.settings
    require_configured_extras(settings)
    with_rule_files(settings.suites, project.root)
    click.echo(f"{project.config_path} is valid: backend {settings.backend.name}")
    click.echo(f"variants: {', '.join(variant.name for variant in settings.variants)}")
    click.echo(f"suites: {', '.join(settings.suites)}")
    click.echo(f"pool: {settings.pool.kind}, {settings.pool.cards} card(s)")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--cluster", "deployment", is_flag=True, help="Look at the cluster, buckets and database instead.")
@click.option("--repair", "repairs", is_flag=True, help="Repair the data folder instead.")
@click.pass_context
def doctor(context: click.Context, as_json: bool, deployment: bool, repairs: bool) -> None:
    """Show what is installed and reachable on this machine.

    For missing pieces, also show what they would enable and how to get them. With --cluster, look at a deployment on
    Kubernetes: rights, free cards, quotas, clocks, image pull, buckets, connections of PostgreSQL. With --repair, look
    through the data folder: damaged files go to its folder `broken`, and what manifests and results allow is made anew. No
    run may be working then.
    """
    if repairs:
        _repair(context)
        return
    import json
    from dataclasses import asdict

    from rich.table import Table

    from accel_ci.doctor import examine, examine_deployment

    found = list((examine_deployment if deployment else examine)(context.obj))
    if as_json:
        click.echo(json.dumps([asdict(piece) for piece in found]))
    else:
        table = Table("piece", "state", "used for", "how to get it", box=None)
        for piece in found:
            table.add_row(
                piece.name, f"{'✓' if piece.usable else '✗'} {piece.state}", piece.enables, "" if piece.usable else piece.how
            )
        terminal()[0].print(table)
    sys.exit(0 if all(piece.usable for piece in found if piece.needed) else 1)


def _repair(context: click.Context) -> None:
    """Repair the data folder and tell what was done."""
    from accel_ci.config.loading import load_project
    from accel_ci.repair import repair
    from accel_ci.workspace import Workspace

    found = repair(Workspace(load_project(context.obj)))
    for each in found:
        click.echo(f"{each.name}: {each.reason}: {each.done}")
    click.echo(f"{len(found)} damaged" if found else "nothing is damaged")
