"""Waits are bounded, and long ones are logged."""

from __future__ import annotations

import logging

import pytest

from accel_ci.process.waiting import WaitLog, poll

LOG = logging.getLogger("accel_ci.pool.test")


def test_polling_asks_at_once_and_stops_at_the_limit() -> None:
    assert len(list(poll(LOG, "nothing", 0.01, 0.0))) in (1, 2)
    for asked, _ in enumerate(poll(LOG, "three answers", 0.001)):
        if asked == 3:
            break
    assert asked == 3


def test_a_short_wait_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        list(poll(LOG, "a moment", 0.01, 0.05))
    assert caplog.records == []


def test_a_long_wait_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_ci.process.waiting._LONG_S", 0.0)
    with caplog.at_level(logging.INFO):
        wait = WaitLog(LOG, "the pods to begin")
        wait.still_waiting("no card is free")
        wait.still_waiting("no card is free")
    [record] = caplog.records
    assert (record.name, record.levelno) == ("accel_ci.pool.test", logging.INFO)
    assert record.getMessage() == "waiting for the pods to begin: no card is free (0 s so far)"
