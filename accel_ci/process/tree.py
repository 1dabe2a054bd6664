"""End processes that have daemonized themselves: they are found by an argument that only they have, and by descent."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, cast

import psutil

_LOOK_EVERY_S = 0.1


def with_argument(argument: str) -> set[psutil.Process]:
    """Find the other processes that have exactly this argument."""
    found = (process for process in psutil.process_iter(["cmdline"]) if argument in (process.info["cmdline"] or ()))
    return set(found) - {psutil.Process()}


def end_processes(argument: str, grace_s: float) -> int:
    """End the processes with this argument and their descendants. Return how many have the argument.

    They get SIGTERM first, and SIGKILL after `grace_s` seconds.
    """
    own = with_argument(argument)
    descendants = _descendants(own)
    for process in own:
        with suppress(psutil.Error):
            process.terminate()
    deadline = time.monotonic() + grace_s
    while (living := _living(own)) and time.monotonic() < deadline:
        descendants |= _descendants(living)
        time.sleep(_LOOK_EVERY_S)
    for process in own | descendants:
        with suppress(psutil.Error):
            process.kill()
    while _living(own) and time.monotonic() < deadline + grace_s:
        time.sleep(_LOOK_EVERY_S)
    return len(own)


@contextmanager
def ended_with_this(argument: str, grace_s: float) -> Iterator[None]:
    """Run `end_processes` if this process ends inside the context, even by SIGKILL.

    A watcher in a separate session waits for the end of a pipe whose other end only this process has. It reads the
    argument from the pipe, so that it does not have the argument itself.
    """
    command = [sys.executable, "-m", "accel_ci.process.tree"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as watcher:
        pipe = cast("IO[bytes]", watcher.stdin)
        pipe.write(f"{grace_s} {argument}\n".encode())
        pipe.flush()
        yield


def _descendants(processes: Iterable[psutil.Process]) -> set[psutil.Process]:
    found: set[psutil.Process] = set()
    for process in processes:
        with suppress(psutil.Error):
            found.update(process.children(recursive=True))
    return found


def _living(processes: Iterable[psutil.Process]) -> set[psutil.Process]:
    """Those that have not ended; one that nobody waits for has ended too."""
    found = set()
    for process in processes:
        with suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process)
    return found


if __name__ == "__main__":  # the watcher of `ended_with_this`
    grace, _, looked_for = sys.stdin.readline().rstrip("\n").partition(" ")
    sys.stdin.read()
    if looked_for:
        end_processes(looked_for, float(grace))
