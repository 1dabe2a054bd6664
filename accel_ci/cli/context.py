"""Code that commands share: loading the project, and output to the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from accel_ci.model import Build
    from accel_ci.progress import Progress
    from accel_ci.workspace import Workspace


def with_workspace(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the workspace of the configured project to a command as its first argument."""

    @click.pass_context
    @wraps(command)
    def wrapped(context: click.Context, /, *arguments: Any, **options: Any) -> Any:
        from accel_ci.config.loading import load_project
        from accel_ci.workspace import Workspace

        return command(Workspace(load_project(context.obj)), *arguments, **options)

    return wrapped


def chosen_build(workspace: Workspace, name: str | None) -> Build:
    """Return the build that a person names: `<revision>~<variant>`, a revision with one variant, or none for the newest.

    Builds whose results were ingested count as well. Raises `AccelCiError`.
    """
    from accel_ci.ledger.status import find_build

    def ingested() -> list[Build]:
        from accel_ci.ledger.ingested import ingested_builds

        return ingested_builds(workspace.results)

    return find_build(workspace.manifests, name, ingested)


def terminal(*, stderr: bool = False) -> tuple[Console, Progress]:
    """A console and a progress display: on standard error for commands whose standard output is data.

    CI systems set `CI`. Some give a job a terminal, but keep its log, which bars would fill for hours.
    """
    from rich.console import Console

    from accel_ci.progress import BarProgress, LineProgress

    stream = sys.stderr if stderr else sys.stdout
    console = Console(width=None if stream.isatty() else 140, stderr=stderr)
    has_bars = console.is_terminal and not os.environ.get("CI")
    return console, BarProgress(console) if has_bars else LineProgress(partial(click.echo, err=stderr))
