"""Whether a new upstream commit is to be tested now: the rule alone, without the asking and the starting."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Start:
    """Test this commit; the cursor moves to it."""

    sha: str


@dataclass(frozen=True)
class Wait:
    """Start nothing, and why."""

    reason: str


def next_step(
    cursor: str | None, sha: str, last_started: datetime | None, now: datetime, minimum: timedelta
) -> Start | Wait:
    """What to do about `sha`, the newest upstream commit, when `cursor` is the last one that was started.

    Commits that arrive within `minimum` of the last start are passed over: when the time is up, the newest is tested.
    """
    if sha == cursor:
        return Wait(f"{sha[:12]} is already tested; nothing new upstream")
    if last_started is not None and now - last_started < minimum:
        ready = last_started + minimum
        return Wait(f"{sha[:12]} waits: the last run began less than {minimum} ago; next at {ready:%H:%M:%S} UTC")
    return Start(sha)
