from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from accel_ci.source.watch import reason_to_wait

NOW = datetime(2026, 11, 27, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("cursor", "sha", "minutes_since_start", "expected"),
    [
        (None, "new", None, None),  # the first tick tests what is there
        ("old", "new", None, None),
        ("old", "new", 61, None),
        ("old", "new", 60, None),
        ("old", "new", 59, "new waits: the last run started less than 1:00:00 ago"),  # later, the newest is tested
        ("new", "new", 600, "nothing new upstream: new was already tested"),
        ("new", "new", None, "nothing new upstream: new was already tested"),
        (None, "new", 5, "new waits: the last run started less than 1:00:00 ago"),
    ],
)
def test_rule(cursor: str | None, sha: str, minutes_since_start: int | None, expected: str | None) -> None:
    started = None if minutes_since_start is None else NOW - timedelta(minutes=minutes_since_start)
    reason = reason_to_wait(cursor, sha, started, NOW, HOUR)
    assert (reason and reason.partition(";")[0]) == expected


def test_waiting_shows_until_when() -> None:
    reason = reason_to_wait("old", "new", NOW - timedelta(minutes=10), NOW, HOUR)
    assert reason is not None
    assert "12:50:00" in reason
