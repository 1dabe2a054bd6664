"""What commands share: the project that they work on, and where they print."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
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
        from accel_ci.config import load_project

        return command(load_project(context.obj), *arguments, **options)

    return wrapped


def terminal() -> tuple[Console, Progress]:
    """Where to print, and how to tell of progress there."""
    from rich.console import Console

    from accel_ci.progress import BarProgress, LineProgress

    console = Console(width=None if sys.stdout.isatty() else 140)
    return console, BarProgress(console) if console.is_terminal else LineProgress(click.echo)
