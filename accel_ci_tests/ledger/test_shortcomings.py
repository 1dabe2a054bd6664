from __future__ import annotations

import re

import pytest

from accel_ci.ledger.status import collected_drop


@pytest.mark.parametrize(
    ("collected", "previous", "reason", "fault"),
    [
        (0, None, None, "no tests were collected"),
        (0, 100, "moved away", "no tests were collected"),
        (1, None, None, None),
        (100, 100, None, None),
        (120, 100, None, None),
        (95, 100, None, None),
        (94, 100, None, r"94 tests were collected, 6\.0% fewer than the last build's 100"),
        (94, 100, "suite was split", None),
        (94, 100, "", "fewer"),
        (18, 19, None, "5.3%"),
    ],
)
def test_fewer_tests_than_before_need_a_reason(
    collected: int, previous: int | None, reason: str | None, fault: str | None
) -> None:
    found = collected_drop(collected, previous, reason)
    assert (found is None) == (fault is None)
    assert fault is None or re.search(fault, found or "")


def test_a_fall_says_what_the_tests_were() -> None:
    assert collected_drop(90, 100, None, "enabled") == (
        "90 tests were enabled, 10.0% fewer than the last build's 100; fix it, or give a reason"
    )
    assert collected_drop(0, None, None, "in scope") == "no tests were in scope"
