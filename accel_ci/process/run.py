"""Run other programs to their end: keep their output, and limit their time."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, CompletedProcess, Popen, TimeoutExpired, run

from accel_ci.errors import BuildError

_TAIL_LINES = 15


@dataclass(frozen=True)
class Finished:
    """The exit status of a tool and its output, both streams together."""

    status: int
    output: str

    @property
    def tail(self) -> str:
        """The last 15 lines of the output."""
        return "\n".join(self.output.strip().splitlines()[-_TAIL_LINES:])


def run_tool(
    command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str], folder: Path | None = None, stdin: str = ""
) -> Finished:
    """Run a command to its end. At the limit, kill its process group and raise `BuildError`."""
    with Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=PIPE,
        stdout=PIPE,
        stderr=STDOUT,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(stdin, timeout=timeout_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, TimeoutExpired):
                raise BuildError(f"{Path(command[0]).name} {command[1]} did not end within {timeout_s:g} s") from None
            raise
    return Finished(process.returncode, output)


def run_apart(
    command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> CompletedProcess[str]:
    """Run a command to its end, and keep its two streams apart; there is no input.

    Raises `FileNotFoundError` if it is not installed, and `TimeoutExpired` at the limit.
    """
    return run(command, cwd=folder, env=environment, stdin=DEVNULL, capture_output=True, errors="replace", timeout=timeout_s)
