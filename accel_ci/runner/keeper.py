"""Run one command and end everything that it leaves: daemons, other sessions, orphans.

By path: `keeper.py [--parent=PID] [--user=UID:GID] COMMAND`; the command runs as that user, and the keeper stays what it
is.

The keeper is the parent of whatever the command's processes leave behind (a subreaper, on Linux), so none escapes by
changing its process group. It ends with the command's status or signal, and ends the command when its own parent ends or
it gets SIGTERM. The module imports nothing of this package, so that it also runs as a single file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CANNOT_START = 127
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIMIT_S = 10.0


def keep(command: Sequence[str], parent: int = 0, grace_s: float = 0.0, user: str = "") -> int:
    """Run the command, then end what it left; return its exit code, negative for a signal. `user` is `uid:gid`, or empty.

    `parent` is the process that has started this one, which may have ended before this function knows; 0 stands for the
    parent of now. The command inherits all descriptors that this process has inherited. When this process is told to end,
    the command gets SIGTERM and `grace_s` seconds.
    """
    parent = parent or os.getppid()
    signal.signal(signal.SIGTERM, _end)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return 1
    group = None
    process: subprocess.Popen[bytes] | None = None
    try:
        process = subprocess.Popen(command, start_new_session=True, close_fds=False, **_identity(user))
        group = process.pid
        return process.wait()
    except SystemExit:
        if process is None or not grace_s:
            raise
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(grace_s)
        raise
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error}\n")
        return CANNOT_START
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_descendants(group)


def _identity(user: str) -> dict[str, Any]:
    uid, _, gid = user.partition(":")
    return {"user": int(uid), "group": int(gid), "extra_groups": []} if user else {}


def end_like(code: int) -> None:
    """End this process with an exit code, or by the signal that a negative one stands for."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _end(_signal: int, _frame: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _end_descendants(group: int | None) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        if group is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
            for pid in map(int, path.read_text().split()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    options = {}
    while arguments and (option := re.fullmatch(r"--(parent|user)=(.*)", arguments[0])):
        options[option[1]] = option[2]
        del arguments[0]
    end_like(keep(arguments, int(options.get("parent", "0")), user=options.get("user", "")))
