"""The Docker command line: found, run, and its refusals explained.

Building is done by the command line, for BuildKit's mounts and secrets are its client's work; the rest goes with it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from accel_ci.errors import BuildError
from accel_ci.process.run import Finished, run_tool

CLIENT_ENVIRONMENT = "ACCEL_CI_DOCKER"
"""Names the client to use, where there are several."""

_CALL_LIMIT_S = 60.0


def docker_environment() -> dict[str, str]:
    """The environment of the client: ours, with BuildKit."""
    return {**os.environ, "DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain", "DOCKER_CLI_HINTS": "false"}


def run_docker(
    arguments: Sequence[str],
    *,
    timeout_s: float = _CALL_LIMIT_S,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Finished:
    """Run the client; the caller judges the status. Raises `BuildError` when there is none, or at the limit."""
    return run_tool(
        [docker_client(), *arguments], timeout_s=timeout_s, environment=environment or docker_environment(), folder=folder
    )


def ask_docker(arguments: Sequence[str], what: str, *, timeout_s: float = _CALL_LIMIT_S) -> str:
    """What the client answers. Raises `BuildError` saying what could not be done."""
    done = run_docker(arguments, timeout_s=timeout_s)
    if done.status != 0:
        raise BuildError(f"Docker could not {what}:\n{done.tail}")
    return done.output.strip()


@cache
def docker_client() -> str:
    """The client on PATH that can build with BuildKit. Raises `BuildError` when there is none.

    Since 23.0 the client builds through a plug-in that may be missing; then an older client beside it will do.
    """
    named = os.environ.get(CLIENT_ENVIRONMENT)
    if named:
        return named
    found = list(_clients())
    for client in found:
        if _builds(client):
            return client
    if found:
        raise BuildError(
            f"{found[0]} cannot build images: install the buildx plug-in, or name another client in {CLIENT_ENVIRONMENT}"
        )
    raise BuildError(f"there is no `docker` on PATH; install Docker, or name its client in {CLIENT_ENVIRONMENT}")


def engine_answers() -> bool:
    """Whether there is a client and an engine that answers it."""
    try:
        return run_docker(["version", "--format", "{{.Server.Version}}"], timeout_s=15).status == 0
    except (BuildError, OSError):
        return False


def _clients() -> Iterator[str]:
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        client = Path(folder or ".") / "docker"
        if client.is_file() and os.access(client, os.X_OK):
            yield str(client)


def _builds(client: str) -> bool:
    def answer(*arguments: str) -> str | None:
        try:
            done = subprocess.run([client, *arguments], capture_output=True, text=True, timeout=15, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    if answer("buildx", "version"):
        return True
    version = answer("--version") or ""  # "Docker version 20.10.24+dfsg1, build …"
    words = version.removeprefix("Docker version ").split(".")
    return words[0].isdigit() and int(words[0]) < 23
