"""Outcomes refined by their messages: signatures of crashed processes and of the test runner's time limits."""

from __future__ import annotations

import re
from collections.abc import Iterable

from accel_ci.model import Outcome

from .report import SEVERITY

_CRASHED = re.compile(
    r"worker '[^']*' crashed while running|The forked VM terminated without"
    r"|^exited with error code (132|133|134|135|136|139)$"
)
_TIMEOUT = re.compile(r"Timeout \(?>[0-9.]+s")


def refined(outcome: Outcome, message: str | None, kind: str | None = None) -> Outcome:
    """Refine a failure's outcome by its message and its `type` attribute."""
    message, kind = message or "", kind or ""
    if _CRASHED.search(message):
        return "crashed"
    of_kind = kind.endswith("TestTimedOutException") or kind == "java.util.concurrent.TimeoutException"
    return "timeout" if of_kind or _TIMEOUT.search(message) else outcome


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of some outcomes."""
    return min(outcomes, key=SEVERITY.__getitem__)
