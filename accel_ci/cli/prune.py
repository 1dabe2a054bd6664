"""`prune`: remove everything that no kept build needs."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import with_workspace

if TYPE_CHECKING:
    from accel_ci.workspace import Workspace

_COUNTED = ("artifact", "cached wheel", "leftover")
"""Kinds with too many items to list each."""


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would go, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
@with_workspace
def prune(workspace: Workspace, dry_run: bool, as_json: bool) -> None:
    """Remove builds that no keep rule in `retention` holds, and everything that only they needed.

    This covers images, sources, wheels, rounds, artifacts, manifests and partition keys. Builds that are running and all
    attempts in the results store are kept. If `retention` is configured, the daemon runs this too (`prune_schedule`).

    Exit status: 0, or 1 if something could not be removed.
    """
    import json
    from dataclasses import asdict

    from accel_ci.defs.upkeep import prune_project
    from accel_ci.hud.text import one_line, size

    found = prune_project(workspace.project, dry_run=dry_run)
    freed = sum(item.size_bytes for item in found)
    if as_json:
        document = {"dry_run": dry_run, "freed_bytes": freed, "items": [asdict(item) for item in found]}
        click.echo(json.dumps(document))
    else:
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for item in found:
            if item.problem is not None:
                click.echo(f"stays: {item.kind} {one_line(item.name)}: {one_line(item.problem)}")
            elif item.kind in _COUNTED:
                counts[item.kind] += 1
                sizes[item.kind] += item.size_bytes
            else:
                click.echo(f"{item.kind} {one_line(item.name)}: {size(item.size_bytes)}")
        for kind, count in counts.items():
            click.echo(f"{count:,} {kind}{'s' * (count > 1)}: {size(sizes[kind])}")
        click.echo(f"{'would free' if dry_run else 'freed'} {size(freed)}")
    sys.exit(int(any(item.problem is not None for item in found)))


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@with_workspace
def janitor(workspace: Workspace, dry_run: bool) -> None:
    """Clean up what dead runs left behind.

    Pauses instances that nobody uses, and ends containers, Jobs and servers of Bazel whose run is over. The start of each
    run does the same, and the daemon does it every 15 minutes (`janitor_schedule`).

    Exit status: 0 if nothing is left behind, 1 if something could not be deleted.
    """
    from accel_ci.defs.upkeep import clear_leftovers_here

    found = clear_leftovers_here(workspace.project, dry_run=dry_run)
    for leftover in found:
        click.echo(leftover.describe(dry_run=dry_run))
    sys.exit(int(any(leftover.problem is not None for leftover in found)))
