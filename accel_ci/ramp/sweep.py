"""Choose the tests of a sweep: those that are not enabled, so that in time each of them runs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from accel_ci.ramp.chances import RampTest


def choose_sweep(tests: Iterable[RampTest], card_s: float) -> list[RampTest]:
    """Return tests in scope that are not enabled, up to `card_s` card-seconds, by name.

    Tests that never ran come first, then those whose last run is longest ago; of equal ones, the cheapest. A test that does
    not fit any more is passed over.
    """
    candidates = sorted(
        (test for test in tests if not test.enabled),
        key=lambda test: (test.last_day or date.min, test.cost_s, test.suite, test.test),
    )
    chosen = []
    for test in candidates:
        if test.cost_s <= card_s:
            chosen.append(test)
            card_s -= test.cost_s
    return sorted(chosen, key=lambda test: (test.suite, test.test))
