"""A machine that commands start and pause: any cloud's command line, a script, or `ssh`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any
from urllib.request import urlopen

from accel_ci.errors import AccelCiError, PoolError
from accel_ci.process.run import run_tool


class CommandProvider:
    """Starts and pauses a machine, however often. Commands may need credentials: they get this process's environment."""

    def __init__(
        self, start: Sequence[str], pause: Sequence[str], ready: Sequence[str], ready_url: str | None, timeout_s: float
    ) -> None:
        """`timeout_s` limits each command."""
        self._start, self._pause, self._ready, self._ready_url = start, pause, ready, ready_url
        self._timeout_s = timeout_s

    def start(self) -> None:
        """Start the machine, or find it started. Raises `PoolError` when the command fails."""
        self._run("start", self._start)

    def is_ready(self) -> bool:
        """Check that the command exits with 0 and that the address answers with a status below 400, where configured."""
        if self._ready and _run(self._ready, self._timeout_s)[0] != 0:
            return False
        return self._ready_url is None or _answers(self._ready_url)

    def pause(self) -> None:
        """Pause the machine, or find it paused. Raises `PoolError` when the command fails."""
        self._run("pause", self._pause)

    def describe_pause(self) -> Mapping[str, Any]:
        """The pause command with its limit, as JSON for `from_description`."""
        return {"command": list(self._pause), "timeout_s": self._timeout_s}

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> CommandProvider:
        """A provider that can only pause. Raises `KeyError` for an invalid description."""
        return cls((), tuple(description["command"]), (), None, float(description["timeout_s"]))

    def _run(self, what: str, command: Sequence[str]) -> None:
        status, output = _run(command, self._timeout_s)
        if status != 0:
            raise PoolError(f"the command of pool.instance.{what} failed ({command[0]}, status {status}): {output}")


def _run(command: Sequence[str], timeout_s: float) -> tuple[int, str]:
    try:
        done = run_tool(command, timeout_s=timeout_s, environment=os.environ, may_leave_processes=True)
    except (AccelCiError, OSError) as error:
        return -1, str(error)
    return done.status, done.tail


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as reply:  # noqa: S310 - the configuration allows only http and https
            return bool(reply.status < 400)
    except (OSError, HTTPException):
        return False
