"""How processes end: with their parent, with their group, and what they left behind.

Linux does all of it. Elsewhere process groups are ended, and the parent's death is noticed by polling; orphans that
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

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_LEFTOVERS_LIMIT_S = 10.0


class Termination:
    """SIGTERM as a `SystemExit` of the main thread: once, and not in the midst of what is done `undisturbed`."""

    def __init__(self) -> None:
        """Begin to handle the signal."""
        self._undisturbed = self._came = False
        signal.signal(signal.SIGTERM, self._come)

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Have a signal that comes inside act at the end; for short things."""
        self._undisturbed = True
        try:
            yield
        finally:
            self._undisturbed = False
            if self._came:
                self._came = False
                self._exit()

    def _come(self, _signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._undisturbed:
            self._came = True
        else:
            self._exit()

    def _exit(self) -> None:
        raise SystemExit(128 + signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def end_with_parent(parent: int, by: signal.Signals) -> None:
    """Have the kernel send this process the signal `by` when `parent` ends, and at once if it has."""
    _prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os.kill(os.getpid(), by)


def end_with_lock(path: Path) -> None:
    """Have this process end by SIGTERM when the lock of the file at `path` is given up by its holder, the driver.

    For a worker that its driver is no parent of, such as one in a container: the kernel gives the lock up when the driver
    ends, however it ends. A lock that nobody holds ends the process at once.
    """

    def wait() -> None:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
        sys.stderr.write(f"the driver of this worker is gone: nobody holds {path}\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Keep other processes of this user from this one's memory and first environment, which hold signed URLs."""
    _prctl(_PR_SET_DUMPABLE, 0)


def signal_group(group: int, by: signal.Signals) -> bool:
    """Send a signal to a process group; False when there is no such group any more."""
    try:
        os.killpg(group, by)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS says so of a group of zombies
        return False
    return True


def end_group(process: subprocess.Popen[bytes], grace_s: float) -> int:
    """End a session leader and its process group, gently for `grace_s` seconds; gives back its return code."""
    if process.poll() is None and grace_s > 0:
        signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    signal_group(process.pid, signal.SIGKILL)
    return process.wait()


def end_leftovers(group: int) -> None:
    """End what a finished child of this process left: its group, and orphans that this process has adopted.

    This process must have no other child. Waits up to 10 s for the last of them.
    """
    deadline = time.monotonic() + _LEFTOVERS_LIMIT_S
    while True:
        alive = signal_group(group, signal.SIGKILL)
        for pid in _children_of(os.getpid()):
            alive = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        if not alive or time.monotonic() > deadline:
            return
        time.sleep(0.005)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _children_of(parent: int) -> list[int]:
    """The process ids of a process's children, of all its threads; empty where /proc does not tell."""
    children: list[int] = []
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError, ValueError):
            children.extend(map(int, path.read_text().split()))
    return children
