"""Run a command that gets SIGTERM when the process that started it ends, however that ends: `python -m … PARENT COMMAND`.

Only Linux has a signal for that. Elsewhere the command runs on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def with_parent(command: Sequence[str]) -> list[str]:
    """Return the command line for a child of this process that runs `command`, whose first word is a path."""
    return [sys.executable, "-m", __name__, str(os.getpid()), *command]


if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):  # it has ended already
        sys.exit(128 + signal.SIGTERM)
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 -- the command takes this process's place, with its signal
