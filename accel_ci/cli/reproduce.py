"""`reproduce`: run a build's failing tests in its image on another machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import with_project

if TYPE_CHECKING:
    from accel_ci.config.settings import Project
    from accel_ci.reproduce.script import Reproduction


@click.command()
@click.argument("build")
@click.argument("test", required=False)
@click.option("--run", "run_it", is_flag=True, help="Run the script instead of printing it.")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="The folder for --run [default: a temporary one]."
)
@with_project
def reproduce(project: Project, build: str, test: str | None, run_it: bool, folder: Path | None) -> None:
    """Print a script that reproduces failures of BUILD.

    On any machine, the script runs TEST (or all tests that did not pass) in the same image. With --run, run the script here
    and exit with its status, which is pytest's if it gets that far.
    """
    from accel_ci.ledger.status import find_build
    from accel_ci.reproduce.script import reproduction
    from accel_ci.workspace import Workspace

    workspace = Workspace(project)
    found = reproduction(workspace, find_build(workspace.manifests, build), test)
    if not run_it:
        click.echo(found.script, nl=False)
        return
    sys.exit(_run(found, folder))


def _run(found: Reproduction, folder: Path | None) -> int:
    import os
    import subprocess
    import tempfile
    from contextlib import nullcontext

    import uv

    from accel_ci.docker.client import docker_client
    from accel_ci.wheels.uv_environment import uv_environment

    first = [str(Path(uv.find_uv_bin()).parent)]
    if found.in_container:
        first.insert(0, str(Path(docker_client()).parent))
    environment = uv_environment()
    environment["PATH"] = os.pathsep.join([*first, environment.get("PATH", os.defpath)])
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with nullcontext(folder) if folder is not None else tempfile.TemporaryDirectory(prefix="accel-ci-reproduce-") as place:
        file = Path(place) / "reproduce.sh"
        file.write_text(found.script)
        return subprocess.run(["sh", str(file)], cwd=place, env=environment, check=False).returncode
