"""The meaning of GitHub's answers, and what follows of them: pauses, tries, the circuit breaker."""

from __future__ import annotations

import email.utils

import httpx
import pytest

from accel_ci.github.answers import Answer, Failed, Limited, Sent, read_answer
from accel_ci.redaction import OF_THIS_PROCESS
from accel_ci.relay.server.fan_out import back_off, settlement_of
from accel_ci.relay.server.queue import Claim
from accel_ci.relay.server.settings import FanOutSettings

NOW = 1_800_000_000.0
CLAIM = Claim("one", "a/b", b"{}", NOW - 1, NOW - 1, 0, 1)
SETTINGS = FanOutSettings(tries=3, first_pause_s=2, longest_pause_s=60, breaker_failures=2, breaker_pause_s=30)


@pytest.mark.parametrize(
    ("status", "headers", "message", "expected"),
    [
        (204, {}, "", Sent()),
        (200, {}, "", Sent()),
        (429, {"Retry-After": "17"}, "slow down", Limited(17, "HTTP 429: slow down")),
        (429, {}, "", Limited(60, "HTTP 429")),
        (403, {"retry-after": "5"}, "", Limited(5, "HTTP 403")),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW) + 90)}, "", Limited(90, "HTTP 403")),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW) - 90)}, "", Limited(1, "HTTP 403")),
        (403, {"X-RateLimit-Remaining": "0"}, "", Limited(60, "HTTP 403")),
        (403, {"X-RateLimit-Remaining": "12"}, "Resource not accessible", Failed("HTTP 403: Resource not accessible")),
        (
            403,
            {},
            "You have exceeded a secondary rate limit",
            Limited(60, "HTTP 403: You have exceeded a secondary rate limit"),
        ),
        (429, {"Retry-After": "999999999"}, "", Limited(6 * 3600, "HTTP 429")),
        (429, {"Retry-After": "soon"}, "", Limited(60, "HTTP 429")),
        (429, {"Retry-After": email.utils.formatdate(NOW + 33, usegmt=True)}, "", Limited(33, "HTTP 429")),
        (503, {"Retry-After": "20"}, "", Failed("HTTP 503", wait_s=20)),
        (500, {}, "a\x1b[31m\nb", Failed("HTTP 500: a [31m b")),
        (404, {}, "Not Found", Failed("HTTP 404: Not Found")),
        (422, {}, "too large", Failed("HTTP 422: too large", permanent=True)),
        (301, {}, "", Failed("HTTP 301: the repository was renamed; correct its name", permanent=True)),
    ],
)
def test_answers(status: int, headers: dict[str, str], message: str, expected: Answer) -> None:
    response = httpx.Response(status, headers=headers, json={"message": message})
    assert read_answer(status, response.headers, response.content, NOW) == expected


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"message": 5}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_message(body: bytes) -> None:
    assert read_answer(500, {}, body, NOW) == Failed("HTTP 500")


def test_a_secret_is_taken_out_before_a_reason_is_cut() -> None:
    secret = "the-Password-of-a-store-0123456789"
    OF_THIS_PROCESS.learn({secret})
    try:
        for length in range(150, 210):
            answer = Failed(f"{'x' * length}{secret} is wrong")
            reason = settlement_of(CLAIM, answer, SETTINGS, NOW, 0, 0).error or ""
            assert "the-Pass" not in reason
            assert len(reason) <= 200
    finally:
        OF_THIS_PROCESS.forget({secret})


def test_pauses_double_up_to_the_longest() -> None:
    assert [back_off(failures, 2, 60, 0) for failures in (1, 2, 3, 6, 1000)] == [2, 4, 8, 60, 60]
    assert back_off(1, 2, 60, 1) == 1


def test_a_failure_is_tried_again_later() -> None:
    end = settlement_of(CLAIM, Failed("HTTP 500"), SETTINGS, NOW, 0, 0)
    assert (end.failed, end.due_at, end.paused_until) == (True, NOW + 2, 0)
    end = settlement_of(CLAIM, Failed("HTTP 503", wait_s=20), SETTINGS, NOW, 0, 0)
    assert (end.due_at, end.paused_until) == (NOW + 20, NOW + 20)


def test_the_breaker_opens_after_failures_in_a_row_and_its_pause_doubles() -> None:
    pauses = [settlement_of(CLAIM, Failed("HTTP 500"), SETTINGS, NOW, row, 0).paused_until - NOW for row in range(1, 4)]
    assert pauses == [30, 60, 60]


def test_dead_letters() -> None:
    last = Claim("one", "a/b", b"{}", NOW, NOW, SETTINGS.tries - 1, 3)
    assert settlement_of(last, Failed("HTTP 500"), SETTINGS, NOW, 0, 0).due_at is None
    old = Claim("one", "a/b", b"{}", NOW, NOW - SETTINGS.give_up_s - 1, 0, 1)
    assert settlement_of(old, Failed("HTTP 500"), SETTINGS, NOW, 0, 0).due_at is None
    refused = settlement_of(CLAIM, Failed("HTTP 422", permanent=True), SETTINGS, NOW, 5, 0)
    assert (refused.due_at, refused.failed, refused.paused_until) == (None, False, 0)


def test_a_rate_limit_counts_against_nobody() -> None:
    end = settlement_of(CLAIM, Limited(60, "HTTP 429"), SETTINGS, NOW, 5, 0.5)
    assert (end.failed, end.due_at, end.github_paused_until, end.paused_until) == (False, NOW + 60.5, NOW + 60, 0)
