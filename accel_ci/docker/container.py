"""Containers for commands: one that runs a single command, and one that lives as long as a run and takes many.

The main process of the latter waits for its standard input to close, which happens when the driver ends, in whichever way.
All carry the lock file of their owner, this process, as a label. What is left when the owner has ended is found by it and
removed, by the next run and by the janitor.
"""

from __future__ import annotations

import atexit
import logging
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import IO, BinaryIO, cast

from accel_ci.docker.client import ask_docker, docker_client, docker_environment, engine_version, run_docker
from accel_ci.docker.image import pull_image
from accel_ci.errors import BuildError
from accel_ci.process.run import Finished
from accel_ci.process.waiting import poll
from accel_ci.storage.file_lock import is_locked, lock_for_life

LABEL = "accel-ci.rbe"
"""The label with the folder that a container works for."""

OWNER_LABEL = "accel-ci.owner"
"""The label with the file that the process which started the container holds locked for as long as it lives."""

HOST_LABEL = "accel-ci.host"
"""The label with the name of that process's machine."""

_LOG = logging.getLogger(__name__)
_CALL_LIMIT_S = 120
_START_LIMIT_S = 60
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Mount:
    """A file or folder of this machine, and where a container sees it."""

    source: Path
    target: Path | str
    read_only: bool = True

    def option(self) -> str:
        """The value of `--mount`."""
        return f"type=bind,source={self.source},target={self.target}{',readonly' if self.read_only else ''}"


@dataclass(frozen=True)
class Container:
    """A running container, by its name."""

    name: str

    def command(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> list[str]:
        """The command that runs another one inside. It has only the names of the environment, so that no value shows."""
        return [docker_client(), "exec", "--workdir", str(folder), *_by_name(environment), self.name, *arguments]

    def run(self, arguments: Sequence[str], folder: Path) -> None:
        """Run a short command inside to its end. Raises `BuildError` if it fails."""
        command = self.command(arguments, folder, {})[1:]
        ask_docker(command, f"run {arguments[0]} in the build container", timeout_s=_CALL_LIMIT_S)


def run_in_container(
    image: str, command: Sequence[str], mounts: Sequence[Mount], environment: Mapping[str, str], cwd: str, timeout_s: float
) -> Finished:
    """Run one command in a fresh container, in the folder `cwd`; the caller checks the status.

    Raises `BuildError` if there is no client, or at the limit; the container is gone in any case.
    """
    name = _new_name("builder")
    options = [*_common(name, mounts), "--workdir", cwd, *_by_name(environment), "--entrypoint", command[0]]
    try:
        return run_docker(["run", *options, image, *command[1:]], timeout_s=timeout_s, environment=environment)
    finally:
        _remove([name])


@contextmanager
def running(image: str, owner: Path, mounts: Sequence[Mount], *, pull_s: float) -> Iterator[Container]:
    """Start a container with the network of this machine; it is gone when the context ends.

    `owner` is the folder that it works for, which identifies it. Raises `BuildError` if there is no engine, or if pulling
    the image fails or takes longer than `pull_s` seconds.
    """
    if engine_version() is None:
        raise BuildError("rbe.image needs a Docker engine, and none answers; start it, or take rbe.image out")
    remove_left(owner)
    pull_image(image, pull_s)
    name = _new_name("rbe")
    options = ["--interactive", "--label", f"{LABEL}={owner}", "--network", "host", "--env", "USER=accel-ci"]
    command = [docker_client(), "run", *_common(name, mounts), *options, "--entrypoint", "cat", image]
    with Popen(
        command, env=docker_environment(), stdin=PIPE, stdout=DEVNULL, stderr=PIPE, start_new_session=True
    ) as process:
        try:
            _wait_until_running(name, process, image)
            yield Container(name)
        finally:
            with suppress(BrokenPipeError):
                cast("IO[bytes]", process.stdin).close()
            _remove([name])
            process.kill()


def remove_ownerless(*, dry_run: bool = False) -> list[str]:
    """Remove the containers of this machine whose owner has ended, and return their names; with `dry_run` only return them.

    Raises `BuildError` if no engine answers.
    """
    form = f'{{{{.Names}}}} {{{{.Label "{HOST_LABEL}"}}}} {{{{.Label "{OWNER_LABEL}"}}}}'
    listing = ["ps", "--all", "--filter", f"label={OWNER_LABEL}", "--format", form]
    listed = [line.split(" ", 2) for line in ask_docker(listing, "list the containers of earlier runs").splitlines()]
    found = [name for name, host, owner in listed if host == os.uname().nodename and not is_locked(Path(owner))]
    if found and not dry_run:
        _remove(found)
    return found


def remove_left(owner: Path) -> None:
    """Remove the containers that an earlier run of the owner left. Raises `BuildError` if no engine answers."""
    listing = ["ps", "--all", "--quiet", "--filter", f"label={LABEL}={owner}"]
    if found := ask_docker(listing, "list the containers of earlier runs"):
        _remove(found.split())


def _common(name: str, mounts: Sequence[Mount]) -> list[str]:
    mounted = [word for mount in mounts for word in ("--mount", mount.option())]
    labels = {OWNER_LABEL: str(_life()[0]), HOST_LABEL: os.uname().nodename}
    labelled = [word for label, value in labels.items() for word in ("--label", f"{label}={value}")]
    user = f"{os.getuid()}:{os.getgid()}"
    return ["--rm", "--init", "--name", name, "--user", user, "--env", "HOME=/tmp", *labelled, *mounted]


@cache
def _life() -> tuple[Path, BinaryIO]:
    """The lock file of this process, locked until it ends."""
    path = Path(tempfile.gettempdir(), f"accel-ci-{os.getuid()}-{uuid.uuid4().hex}.lock")
    file = lock_for_life(path)
    atexit.register(path.unlink, missing_ok=True)
    return path, file


def _by_name(environment: Mapping[str, str]) -> list[str]:
    return [word for name in environment for word in ("--env", name)]


def _new_name(purpose: str) -> str:
    return f"accel-ci-{purpose}-{uuid.uuid4().hex[:12]}"


def _remove(containers: Sequence[str]) -> None:
    """Remove containers, some of which may be gone already."""
    with suppress(BuildError):
        ask_docker(["rm", "--force", "--volumes", *containers], "remove containers", timeout_s=_CALL_LIMIT_S)


def _wait_until_running(name: str, process: Popen[bytes], image: str) -> None:
    for _ in poll(_LOG, f"a container of {image} to start", _LOOK_EVERY_S, _START_LIMIT_S):
        if run_docker(["inspect", "--format", "{{.State.Running}}", name]).output.strip() == "true":
            return
        if process.poll() is not None:
            printed = cast("IO[bytes]", process.stderr).read().decode("utf-8", "replace").strip()
            raise BuildError(f"a container of {image} cannot be started: {printed or 'it ended at once'}")
    raise BuildError(f"a container of {image} did not start within {_START_LIMIT_S} s")
