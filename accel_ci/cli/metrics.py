"""`metrics`: the state of the project's CI, for Prometheus."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import with_workspace

if TYPE_CHECKING:
    from accel_ci.workspace import Workspace


@click.command()
@click.option("--textfile", type=click.Path(path_type=Path, dir_okay=False), help="Write them into FILE, for node exporter.")
@click.option("--serve", metavar="[HOST:]PORT", help="Answer at http://HOST:PORT/metrics until you press Ctrl-C.")
@with_workspace
def metrics(workspace: Workspace, textfile: Path | None, serve: str | None) -> None:
    """Show the state of CI in Prometheus' text format.

    Of the newest build of each variant and trigger: verdicts, times, cards, and the makespan over its bound. Of Dagster:
    the queue of runs, and the age of the last tick of each schedule and sensor. `deploy/grafana/accel_ci.json` is a
    dashboard of them.
    """
    from accel_ci.defs.metrics import metrics_text, serve_metrics, write_metrics

    if serve is not None:
        host, _, port = serve.rpartition(":")
        if not port.isdecimal():
            raise click.BadParameter(f"{serve!r} has no port, such as 9464 or 0.0.0.0:9464", param_hint="--serve")
        serve_metrics(workspace.project, host or "127.0.0.1", int(port), partial(click.echo, err=True))
    elif textfile is not None:
        write_metrics(workspace.project, textfile)
    else:
        click.echo(metrics_text(workspace.project), nl=False)
