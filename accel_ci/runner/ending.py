"""The end of processes: with their parent, with their group, and together with what they leave behind.

All of it works on Linux. Elsewhere process groups are ended and the parent's end is noticed by polling, but orphans that
left their group are not found.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .copies import CopiedProcess

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_LEFTOVERS_LIMIT_S = 10.0


class Termination:
    """The end of this process by SIGTERM, which becomes one `SystemExit` in the main thread, or with its parent's end."""

    def __init__(self, parent: int | None) -> None:
        """Begin to handle the signal. `parent` is None when this process may outlive its parent."""
        self._parent = parent
        self._delayed = self.is_asked_for = False
        signal.signal(signal.SIGTERM, self._handle)

    @contextlib.contextmanager
    def delayed(self) -> Iterator[Termination]:
        """Delay the effect of the signal until the end of the block, which must be short."""
        self._delayed = True
        try:
            yield self
        finally:
            self._delayed = False
            if self.is_asked_for:
                self.is_asked_for = False
                raise SystemExit(128 + signal.SIGTERM)

    def check_parent(self) -> None:
        """Raise `SystemExit` when the parent has ended; for systems whose kernel sends no signal then."""
        if self._parent is not None and os.getppid() != self._parent:
            raise SystemExit(1)

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.is_asked_for = self._delayed
        if not self._delayed:
            raise SystemExit(128 + signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def end_with_parent(parent: int, by: signal.Signals) -> None:
    """Have the kernel send this process the signal `by` when `parent` ends, or at once if it has ended."""
    _prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os.kill(os.getpid(), by)


def end_with_lock(path: Path) -> None:
    """End this process by SIGTERM when the driver no longer holds the lock of the file at `path`.

    For a worker whose parent is not the driver, such as one in a container: the kernel releases the lock when the driver
    ends, however it ends. A lock that no process holds ends this one at once.
    """

    def wait() -> None:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
        print(f"the driver of this worker has ended: no process holds {path}", file=sys.stderr, flush=True)  # noqa: T201
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parent has ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Hide this process's memory and initial environment, which hold signed URLs, from other processes of the user."""
    _prctl(_PR_SET_DUMPABLE, 0)


def describe_end(code: int) -> str:
    """Describe the end of a process by its exit code, negative for a signal: "pytest …"."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def signal_group(group: int, by: signal.Signals) -> bool:
    """Send a signal to a process group; False when the group has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter on macOS, for a group of zombies
        os.killpg(group, by)
        return True
    return False


def end_group(process: subprocess.Popen[bytes] | CopiedProcess, grace_s: float) -> int:
    """End a process group by SIGTERM and after `grace_s` seconds by SIGKILL; return the exit code of its leader."""
    if process.poll() is None and grace_s > 0:
        signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    signal_group(process.pid, signal.SIGKILL)
    return process.wait()


def end_leftovers(group: int, spared: int | None = None) -> None:
    """End what a finished child left: the rest of its group, and orphans that this process has adopted.

    This process must have no other child than the `spared` one. Waits up to 10 s for the last of them to end.
    """
    deadline = time.monotonic() + _LEFTOVERS_LIMIT_S
    while True:
        alive = signal_group(group, signal.SIGKILL)
        for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                for pid in {int(word) for word in path.read_text().split()} - {spared}:
                    alive = True
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not alive or time.monotonic() > deadline:
            return
        time.sleep(0.005)
