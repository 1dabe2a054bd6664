"""Run the tools that build and check: keep their output, limit their time, explain their failure."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    with subprocess.Popen(
        command,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(stdin, timeout=timeout_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise BuildError(f"{Path(command[0]).name} {command[1]} did not end within {timeout_s:g} s") from None
            raise
    return Finished(process.returncode, output)
