"""The rule that decides whether to test a new upstream commit now. Asking upstream and starting runs happen elsewhere."""

from __future__ import annotations

from datetime import datetime, timedelta


def reason_to_wait(
    cursor: str | None, sha: str, last_started: datetime | None, now: datetime, minimum: timedelta
) -> str | None:
    """Return why not to test `sha`, the newest upstream commit, now; None to test it. `cursor` is the last tested one.

    Commits that arrive within `minimum` of the last start are skipped; once that time is over, the newest is tested.
    """
    if sha == cursor:
        return f"nothing new upstream: {sha[:12]} was already tested"
    if last_started is not None and now - last_started < minimum:
        ready = last_started + minimum
        return f"{sha[:12]} waits: the last run started less than {minimum} ago; next run from {ready:%H:%M:%S} UTC"
    return None
