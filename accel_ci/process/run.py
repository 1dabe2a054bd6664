"""Run other programs to their end: bound their time and the output that is kept, and end what they leave behind."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, CompletedProcess, Popen, TimeoutExpired
from threading import Thread
from typing import IO

import accel_ci
from accel_ci.errors import BuildError
from accel_ci.process.own_user import OwnUser
from accel_ci.redaction import redact

_TAIL_LINES = 15
_TAIL_BYTES = 16_000
_KEPT_BYTES = 8 << 20
"""The end of a program's output that is kept; all the rest is read and dropped."""

_ENDING_S = 15.0
_LAST_OUTPUT_S = 1.0
"""The time for the output of a program that has ended: something that it left may hold the pipe open for ever."""

_KEEPER = Path(accel_ci.__file__).parent / "runner" / "keeper.py"


@dataclass(frozen=True)
class Finished:
    """The exit status of a tool and its output, both streams together and without secrets."""

    status: int
    output: str

    @property
    def tail(self) -> str:
        """The last 15 lines of the output, at most 16 kB."""
        return "\n".join(self.output.strip().splitlines()[-_TAIL_LINES:])[-_TAIL_BYTES:]


def run_tool(
    command: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str],
    folder: Path | None = None,
    stdin: str = "",
    user: OwnUser | None = None,
    may_leave_processes: bool = False,
) -> Finished:
    """Run a command to its end, and end everything that it has started, also what has left its process group.

    It runs as `user` if there is one, which needs this process to be root.
    With `may_leave_processes`, a daemon may stay. Only the last 8 MiB of the output are kept. Raises `BuildError` at the
    limit, and `FileNotFoundError` if the command is not installed.
    """
    keeper = [] if may_leave_processes else _keeper()
    if keeper and user is not None:
        keeper.append(f"--user={user}")
    _require(command[0], environment)
    process = Popen(
        [*keeper, *command], cwd=folder, env=environment, stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )
    output = _Output(process.stdout)
    _write(process.stdin, stdin)
    try:
        process.wait(timeout_s)
    except BaseException as error:
        _end(process, gently=bool(keeper))
        if isinstance(error, TimeoutExpired):
            name = " ".join([Path(command[0]).name, *command[1:2]])
            last = redact(output.text()).strip().rpartition("\n")[2][-300:]
            raise BuildError(f"{name} did not end within {timeout_s:g} s{last and f'; its last output: {last}'}") from None
        raise
    return Finished(process.returncode, redact(output.text()))


def run_apart(
    command: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    errors: str = "replace",
) -> CompletedProcess[str]:
    """Run a command to its end in a new session, without a terminal or input, and keep its two streams apart.

    `errors` is how bytes that are no UTF-8 are decoded.
    Raises `FileNotFoundError` if it is not installed, and `TimeoutExpired` at the limit. It ends with this process.
    """
    _require(command[0], os.environ if environment is None else environment)
    process = Popen(
        [*_keeper(), *command], cwd=folder, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
    )
    output, messages = _Output(process.stdout, errors), _Output(process.stderr, errors)
    try:
        process.wait(timeout_s)
    except BaseException:
        _end(process, gently=True)
        raise
    return CompletedProcess(command, process.returncode, output.text(), messages.text())


def _keeper() -> list[str]:
    """The beginning of a command that ends with this process, and leaves nothing behind."""
    return [sys.executable, "-I", "-S", str(_KEEPER), f"--parent={os.getpid()}"]


def _require(program: str, environment: Mapping[str, str]) -> None:
    if shutil.which(program, path=environment.get("PATH", os.defpath)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)


class _Output:
    """The end of what a program prints, read by another thread, so that no flood fills the memory or blocks it."""

    def __init__(self, stream: IO[bytes] | None, errors: str = "replace") -> None:
        self._errors = errors
        self._chunks: deque[bytes] = deque()
        self._size = self._dropped = 0
        self._thread = Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Return the output until now; wait up to a second for the rest."""
        self._thread.join(_LAST_OUTPUT_S)
        left_out = f"[{self._dropped:,} bytes left out]\n" if self._dropped else ""
        return left_out + b"".join(tuple(self._chunks)).decode("utf-8", self._errors)

    def _read(self, stream: IO[bytes]) -> None:
        with suppress(OSError, ValueError), stream:
            while chunk := os.read(stream.fileno(), 1 << 16):
                self._chunks.append(chunk)
                self._size += len(chunk)
                while self._size > _KEPT_BYTES:
                    dropped = len(self._chunks.popleft())
                    self._size -= dropped
                    self._dropped += dropped


def _write(pipe: IO[bytes] | None, text: str) -> None:
    """Give a program its input beside the reading of its output."""

    def write(open_pipe: IO[bytes]) -> None:
        with suppress(OSError), open_pipe:
            open_pipe.write(text.encode())

    if pipe is not None:
        Thread(target=write, args=(pipe,), daemon=True).start()


def _end(process: Popen[bytes], *, gently: bool) -> None:
    """End a process group; a keeper gets the time to end what has left it."""
    if gently:
        process.terminate()
        with suppress(TimeoutExpired):
            process.wait(_ENDING_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
