"""Ending processes that daemonized themselves: they are found by an argument that nobody else has, and by descent.

Reads `/proc`; where there is none, nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

_LOOK_EVERY_S = 0.1


def with_argument(argument: str) -> set[int]:
    """The processes that have exactly this argument."""
    wanted = argument.encode()
    return {pid for pid in _all() if pid != os.getpid() and wanted in _read(pid, "cmdline").split(b"\0")}


def descendants(of: Iterable[int]) -> set[int]:
    """All processes that descend from these."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid in _all():
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        if len(fields) > 1:
            children[int(fields[1])].append(pid)
    found: set[int] = set()
    open_pids = list(of)
    while open_pids:
        new = [child for child in children[open_pids.pop()] if child not in found]
        found.update(new)
        open_pids += new
    return found


def end_processes(argument: str, grace_s: float) -> int:
    """End the processes with this argument and all that descend from them; how many there were.

    They are asked first, and killed when they are still there after `grace_s` seconds.
    """
    own = with_argument(argument)
    if not own:
        return 0
    below = descendants(own)
    _signal(own, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while _living(own) and time.monotonic() < deadline:
        below |= descendants(own)
        time.sleep(_LOOK_EVERY_S)
    _signal(own | below, signal.SIGKILL)
    while _living(own) and time.monotonic() < deadline + grace_s:
        time.sleep(_LOOK_EVERY_S)
    return len(own)


@contextmanager
def ended_with_this(argument: str, grace_s: float) -> Iterator[None]:
    """Inside, have the processes with this argument ended as by `end_processes` should this process end, be it killed.

    A watcher in a session of its own waits for the end of a pipe of which this process alone has the other end. It is told
    the argument through the pipe, so that it has not got it itself.
    """
    command = [sys.executable, "-m", "accel_ci.process.tree"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as watcher:
        describe = cast("IO[bytes]", watcher.stdin)
        describe.write(f"{grace_s} {argument}\n".encode())
        describe.flush()
        yield


def _watch() -> None:
    """The watcher: see `ended_with_this`."""
    grace_s, _, argument = sys.stdin.readline().rstrip("\n").partition(" ")
    sys.stdin.read()
    if argument:
        end_processes(argument, float(grace_s))


def _all() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return []


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended
        return b""


def _living(pids: Iterable[int]) -> set[int]:
    return {pid for pid in pids if _read(pid, "stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"])}


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


if __name__ == "__main__":
    _watch()
