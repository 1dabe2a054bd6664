"""The rule that decides whether to test a new upstream commit now. Asking upstream and starting runs happen elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Start:
    """Test this commit and move the cursor to it."""

    sha: str


@dataclass(frozen=True)
class Wait:
    """Start nothing, for this reason."""

    reason: str


def next_step(
    cursor: str | None, sha: str, last_started: datetime | None, now: datetime, minimum: timedelta
) -> Start | Wait:
    """Decide about `sha`, the newest upstream commit, when `cursor` is the last one that was started.

    Commits that arrive within `minimum` of the last start are skipped; once that time is over, the newest is tested.
    """
    if sha == cursor:
        return Wait(f"nothing new upstream: {sha[:12]} was already tested")
    if last_started is not None and now - last_started < minimum:
        ready = last_started + minimum
        return Wait(f"{sha[:12]} waits: the last run started less than {minimum} ago; next run from {ready:%H:%M:%S} UTC")
    return Start(sha)
