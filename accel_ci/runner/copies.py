"""Copies of a process that has collected a suite: a test that ends its process costs a fork, not another collection.

The original imports and collects the suite, and then only waits. Each pytest session runs in a fork of it, which gets new
pipes from the worker. A copy is a child of the worker, as the orphan of a process in between, so its end is known and the
original is no relative of the tests. All of it needs Linux; `may_copy` says where it would not be safe.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from .ending import end_with_parent

_LIMIT_S = 30.0
_COMMON_DEVICES = frozenset({1, 5, *range(136, 144)})  # major numbers: memory (/dev/null), terminals, pseudo terminals


class CopyError(OSError):
    """The original makes no copy: it has ended, or does not answer."""


def may_copy() -> bool:
    """Return whether a fork of this process works: it runs no thread and holds no device.

    Threads of OpenBLAS are allowed, which starts one per core when it is loaded and is safe to fork.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    maps = Path("/proc/self/maps").read_text("utf-8", "surrogateescape")
    libraries = set(re.findall(r"\S*openblas\S*", maps))
    threads = len(list(Path("/proc/self/task").iterdir())) - 1
    devices = any(line.startswith("/dev/") for line in re.findall(r"(/dev/(?!shm/|zero).*)", maps))
    return (
        threads <= len(libraries) * max(0, (os.cpu_count() or 1) - 1) and not devices and not any(map(_is_device, _open()))
    )


def _open() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


def _is_device(descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        status = os.fstat(descriptor)
        return stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) not in _COMMON_DEVICES
    return False


def standard_output() -> Path | None:
    """Return a name of this process's output, by which its descriptors are found after pytest has moved them."""
    return _target(1)


def serve_copies(control: socket.socket, commands: int, results: int, output: Path | None, worker: int) -> None:
    """Make copies until the worker closes `control`; return in each copy, never in the original.

    A copy has its pipes in place of the original's `commands` and `results`, and its output in place of all descriptors of
    the original's `output`.
    """
    outputs = [number for number in _open() if _target(number) == output]
    while True:
        _, received, _, _ = socket.recv_fds(control, 1, 3)
        if not received:
            os._exit(0)
        between = os.fork()
        if between == 0:
            if os.fork() != 0:
                os._exit(0)
            _become_copy(control, received, commands, results, outputs, worker)
            return
        os.waitpid(between, 0)
        for descriptor in received:
            os.close(descriptor)


def _target(descriptor: int) -> Path | None:
    with contextlib.suppress(OSError):
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    return None


def _become_copy(
    control: socket.socket, received: Sequence[int], commands: int, results: int, outputs: Sequence[int], worker: int
) -> None:
    os.setsid()
    deadline = time.monotonic() + _LIMIT_S
    while os.getppid() != worker:
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.001)
    end_with_parent(worker, signal.SIGKILL)
    own_commands, own_results, own_output = received
    os.dup2(own_commands, commands, inheritable=False)
    os.dup2(own_results, results, inheritable=False)
    for descriptor in outputs:
        os.dup2(own_output, descriptor, inheritable=os.get_inheritable(descriptor))
    for descriptor in received:
        os.close(descriptor)
    control.sendall(b"%d\n" % os.getpid())
    control.close()


class CopiedProcess:
    """A copy, as far as its worker needs `subprocess.Popen`; `returncode` is None while it runs."""

    def __init__(self, control: socket.socket, descriptors: Sequence[int]) -> None:
        """Have the original make a copy with these pipes. Raises `CopyError`."""
        try:
            control.settimeout(_LIMIT_S)
            socket.send_fds(control, [b"\0"], list(descriptors))
            answer = b""
            while not answer.endswith(b"\n"):
                part = control.recv(64)
                if not part:
                    raise CopyError("the process that has collected the suite has ended")
                answer += part
            self.pid, self.returncode = int(answer), None
        except (OSError, ValueError) as error:
            raise CopyError(f"the process that has collected the suite makes no copy: {error}") from error

    returncode: int | None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code. Raises `subprocess.TimeoutExpired`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and timeout is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.002)
        return code
