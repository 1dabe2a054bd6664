"""What commands share: the project that they work on, and where they print."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from accel_ci.progress import Progress


def with_project(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the project that the configuration describes as its first argument."""

    @click.pass_context
    @wraps(command)
    def wrapped(context: click.Context, /, *arguments: Any, **options: Any) -> Any:
        from accel_ci.config.loading import load_project

        return command(load_project(context.obj), *arguments, **options)

    return wrapped


def terminal(*, stderr: bool = False) -> tuple[Console, Progress]:
    """Where to print, and how to tell of progress there: on the standard error where the output is the answer."""
    from rich.console import Console

    from accel_ci.progress import BarProgress, LineProgress

    stream = sys.stderr if stderr else sys.stdout
    console = Console(width=None if stream.isatty() else 140, stderr=stderr)
    return console, BarProgress(console) if console.is_terminal else LineProgress(partial(click.echo, err=stderr))
