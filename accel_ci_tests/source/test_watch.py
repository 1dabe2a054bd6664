from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from accel_ci.source.watch import Start, Wait, next_step

NOW = datetime(2026, 11, 27, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("cursor", "sha", "minutes_since_start", "expected"),
    [
        (None, "new", None, Start),  # the first tick tests what is there
        ("old", "new", None, Start),
        ("old", "new", 61, Start),
        ("old", "new", 60, Start),
        ("old", "new", 59, Wait),  # the cursor stays, so the newest is tested when the time is up
        ("new", "new", 600, Wait),
        ("new", "new", None, Wait),
        (None, "new", 5, Wait),
    ],
)
def test_rule(cursor: str | None, sha: str, minutes_since_start: int | None, expected: type) -> None:
    started = None if minutes_since_start is None else NOW - timedelta(minutes=minutes_since_start)
    assert isinstance(next_step(cursor, sha, started, NOW, HOUR), expected)


def test_waiting_shows_until_when() -> None:
    step = next_step("old", "new", NOW - timedelta(minutes=10), NOW, HOUR)
    assert isinstance(step, Wait)
    assert "12:50:00" in step.reason
