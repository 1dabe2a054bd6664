"""Run a command that gets SIGTERM when the process that started it ends, however that ends: `python -m … PARENT COMMAND`.

Only Linux has a signal for that. Elsewhere the command runs on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from accel_ci.runner.ending import end_with_parent


def with_parent(command: Sequence[str]) -> list[str]:
    """Return the command line for a child of this process that runs `command`, whose first word is a path."""
    return [sys.executable, "-m", __name__, str(os.getpid()), *command]


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]), signal.SIGTERM)
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 -- the command takes this process's place, with its signal
