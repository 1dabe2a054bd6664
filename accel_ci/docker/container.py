"""A container that lives as long as a run: commands are run in it, and it ends with the process that started it.

Its main process waits for its standard input to close, which is what happens when the driver ends, in whichever way. One
that is left all the same, since the engine was away, is removed by its label when the next run begins.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from accel_ci.docker.client import CLIENT_ENVIRONMENT
from accel_ci.errors import BuildError

LABEL = "accel-ci.rbe"
_CALL_LIMIT_S = 120
_START_LIMIT_S = 60


@dataclass(frozen=True)
class Container:
    """A running container, by its name; `docker` is the client."""

    docker: str
    name: str

    def command(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> list[str]:
        """The command that runs another one inside; the environment goes by name, so that no value is in it."""
        names = [part for name in environment for part in ("--env", name)]
        return [self.docker, "exec", "--workdir", str(folder), *names, self.name, *arguments]


@contextmanager
def running(
    image: str, owner: Path, read_only: Iterable[Path], writable: Iterable[Path], *, pull_s: float
) -> Iterator[Container]:
    """A container of an image with folders mounted at their own paths; it is gone when the context ends.

    `owner` is the folder that it works for, by which it is found. It has the network of this machine. Raises `BuildError`
    when there is no engine or the image cannot be had within `pull_s` seconds.
    """
    docker = _client()
    remove_left(owner)
    if _call([docker, "image", "inspect", "--format", "ok", image], _CALL_LIMIT_S).returncode != 0:
        pulled = _call([docker, "pull", "--quiet", image], pull_s)
        if pulled.returncode != 0:
            raise BuildError(f"{image} cannot be pulled: {_last(pulled)}; see that the registry has it and lets you in")
    name = f"accel-ci-rbe-{uuid.uuid4().hex[:12]}"
    mounts = [f"type=bind,source={path},target={path},readonly" for path in read_only]
    mounts += [f"type=bind,source={path},target={path}" for path in writable]
    command = [
        docker, "run", "--rm", "--interactive", "--init", "--name", name, "--label", f"{LABEL}={owner}", "--network", "host",
        "--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp", "--env", "USER=accel-ci", "--entrypoint", "cat",
        *(part for mount in mounts for part in ("--mount", mount)), image,
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            _wait_for(docker, name, process, image)
            yield Container(docker, name)
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # type: ignore[union-attr]
            _call([docker, "rm", "--force", "--volumes", name], _CALL_LIMIT_S)
            process.kill()


def remove_left(owner: Path) -> None:
    """Remove the containers that an earlier run left."""
    docker = _client()
    found = _call([docker, "ps", "--all", "--quiet", "--filter", f"label={LABEL}={owner}"], _CALL_LIMIT_S)
    if found.returncode != 0:
        raise BuildError(f"the Docker engine does not answer: {_last(found)}; start it, or take rbe.image out")
    if names := found.stdout.split():
        _call([docker, "rm", "--force", "--volumes", *names], _CALL_LIMIT_S)


def run_inside(container: Container, arguments: Sequence[str], folder: Path) -> None:
    """Run a short command inside to its end. Raises `BuildError` when it fails."""
    done = _call(container.command(arguments, folder, {}), _CALL_LIMIT_S)
    if done.returncode != 0:
        raise BuildError(f"{arguments[0]} in the build container failed: {_last(done)}")


def _client() -> str:
    found = os.environ.get(CLIENT_ENVIRONMENT) or shutil.which("docker")
    if found is None:
        raise BuildError("docker is not installed, and rbe.image needs it; install it, or take rbe.image out")
    return found


def _wait_for(docker: str, name: str, process: subprocess.Popen[bytes], image: str) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while _call([docker, "inspect", "--format", "{{.State.Running}}", name], _CALL_LIMIT_S).stdout.strip() != "true":
        if process.poll() is not None or time.monotonic() > deadline:
            said = process.stderr.read().decode("utf-8", "replace").strip() if process.poll() is not None else "no answer"  # type: ignore[union-attr]
            raise BuildError(
                f"a container of {image} cannot be started: {said.splitlines()[-1] if said else 'it ended at once'}"
            )
        time.sleep(0.1)


def _call(command: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer within {limit_s:g} s")


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
    return lines[-1]
