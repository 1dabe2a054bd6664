"""The command `dev`: the Dagster UI on the project's data, and the HUD and the artifacts beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import with_workspace

if TYPE_CHECKING:
    from accel_ci.hud.serve import HudServer
    from accel_ci.workspace import Workspace


_QUIET = ("-W", "ignore:Function `dev_command` is superseded")
"""Hides Dagster's advice to use another command, which is for those who call `dagster dev`."""


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=3000, show_default=True, help="The port of the UI.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address of the UI.")
@click.option("--hud-port", type=click.IntRange(0, 65535), help="The port of the HUD, on 127.0.0.1 [default: the next one].")
@with_workspace
def dev(workspace: Workspace, port: int, host: str, hud_port: int | None) -> None:
    """Start the Dagster UI with schedules and sensors on the project's data, and serve the HUD beside it."""
    from accel_ci.config.loading import CONFIG_ENVIRONMENT, HOME_ENVIRONMENT
    from accel_ci.defs.instance import open_instance, prepare_dagster_home, workspace_file
    from accel_ci.storage.dev_file import DevAddresses, claim, publish

    project = workspace.project
    with open_instance(project):  # a mistake in dagster.yaml is one line here, and a traceback in Dagster
        pass
    claimed = claim(workspace.dev_file)
    hud = _serve_hud(workspace, port + 1 if hud_port is None else hud_port)
    addresses = DevAddresses(f"http://{f'[{host}]' if ':' in host else host}:{port}", hud.address, os.getpid())
    publish(claimed, addresses)
    click.echo(f"UI:  {addresses.ui}   (starts in some seconds)\nHUD: {addresses.hud}")
    paths = {CONFIG_ENVIRONMENT: str(project.config_path), HOME_ENVIRONMENT: str(project.home)}
    environment = os.environ | paths | {"DAGSTER_HOME": str(prepare_dagster_home(project))}
    with workspace_file(project) as file:
        command = [sys.executable, *_QUIET, "-m", "dagster", "dev", "-w", str(file), "--host", host, "--port", str(port)]
        sys.exit(_run(command, environment, project.home, claimed))


def _serve_hud(workspace: Workspace, port: int) -> HudServer:
    """Serve the HUD on the port, or on a free one where that is taken."""
    from accel_ci.hud.serve import HudServer

    workspace.hud.mkdir(parents=True, exist_ok=True)
    try:
        server = HudServer(workspace.hud, workspace.artifacts, port)
    except (OSError, OverflowError):
        server = HudServer(workspace.hud, workspace.artifacts, 0)
    server.start()
    return server


def _run(command: list[str], environment: dict[str, str], folder: Path, claimed: int) -> int:
    """Run Dagster in a folder to its end, and hand on the signals to end.

    If this process is killed, Dagster ends too. It keeps the claim until then.
    """
    from accel_ci.process.with_parent import with_parent

    tied = with_parent(command)
    with subprocess.Popen(tied, env=environment, cwd=folder, pass_fds=(claimed,), start_new_session=True) as dagster:

        def hand_on(number: int, _: FrameType | None) -> None:
            dagster.send_signal(number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, hand_on)
        return abs(dagster.wait())
