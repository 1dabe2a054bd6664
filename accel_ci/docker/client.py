"""The Docker command line: found, run within a time limit, and its failures explained.

Images and builders need it, because BuildKit's mounts and secrets are the work of the command line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from subprocess import TimeoutExpired

from accel_ci.errors import BuildError
from accel_ci.process.run import Finished, run_apart, run_tool

CLIENT_ENVIRONMENT = "ACCEL_CI_DOCKER"
"""Names the client to use if there are several."""

_CALL_LIMIT_S = 60.0
_PROBE_LIMIT_S = 15.0


def docker_environment(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the client: this process's and `given`, with BuildKit."""
    own = {"DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain", "DOCKER_CLI_HINTS": "false"}
    return {**os.environ, **own, **(given or {})}


def run_docker(
    arguments: Sequence[str], *, timeout_s: float = _CALL_LIMIT_S, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run the client, with `environment` added; the caller judges the status.

    Raises `BuildError` if there is no client, or at the limit.
    """
    client = docker_client(builds=arguments[0] == "build")
    return run_tool([client, *arguments], timeout_s=timeout_s, environment=docker_environment(environment))


def ask_docker(arguments: Sequence[str], what: str, *, timeout_s: float = _CALL_LIMIT_S) -> str:
    """Return what the client prints. Raises `BuildError` that Docker could not do `what`, with the reason."""
    try:
        done = run_apart([docker_client(), *arguments], timeout_s=timeout_s, environment=docker_environment())
    except TimeoutExpired:
        raise BuildError(f"Docker could not {what} within {timeout_s:g} s; see that the engine works") from None
    if done.returncode != 0:
        raise BuildError(f"Docker could not {what}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout.strip()


@cache
def docker_client(*, builds: bool = False) -> str:
    """The first client on PATH that can build with BuildKit; if none can, the first one, unless it must (`builds`).

    From 23.0 on, the client builds through a plug-in that may be missing; an older client beside it can still build.
    Raises `BuildError` if there is no client.
    """
    if named := os.environ.get(CLIENT_ENVIRONMENT):
        return named
    places = [Path(folder or ".") / "docker" for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    found = [str(client) for client in places if client.is_file() and os.access(client, os.X_OK)]
    if not found:
        raise BuildError(f"there is no `docker` on PATH; install Docker, or name its client in {CLIENT_ENVIRONMENT}")
    builder = next(filter(_builds, found), None)
    if builder is None and builds:
        advice = f"install the buildx plug-in, or name another client in {CLIENT_ENVIRONMENT}"
        raise BuildError(f"{found[0]} cannot build images: {advice}")
    return builder or found[0]


def engine_version() -> str | None:
    """The version of the engine; None if there is no client, or no engine answers it."""
    try:
        return ask_docker(["version", "--format", "{{.Server.Version}}"], "ask the engine", timeout_s=_PROBE_LIMIT_S)
    except (BuildError, OSError):
        return None


@cache
def _builds(client: str) -> bool:
    def answer(*arguments: str) -> str | None:
        try:
            done = run_apart([client, *arguments], timeout_s=_PROBE_LIMIT_S)
        except (OSError, TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    if answer("buildx", "version"):
        return True
    version = answer("--version") or ""  # "Docker version 20.10.24+dfsg1, build …"
    major = version.removeprefix("Docker version ").partition(".")[0]
    return major.isdigit() and int(major) < 23
