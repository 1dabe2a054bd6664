"""Hide this process's memory and environment from code that runs as the same user."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

_PR_SET_DUMPABLE = 4


def hide_from_same_user() -> None:
    """Let no other process of this user read /proc/<pid>/environ and the memory, nor attach a debugger. Root still can.

    Programs that this process starts are not hidden: they get nothing that is secret, or run no code of the sources.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0)
